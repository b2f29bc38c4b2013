"""Kernel parameters by their files in /proc/sys, with the old values remembered for the day of removal.

Network parameters are those of the namespace that the calling thread is in.
"""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from dataplane.errors import DataplaneError, KernelRefused
from dataplane.namespace import entered

_PROC_SYS = Path("/proc/sys")
IPV6_FORWARDING = "net.ipv6.conf.all.forwarding"
IPVS_REROUTE = "net.ipv4.vs.snat_reroute"
"""Whether IPVS looks for the way anew after it gave an answer its address; there once the module ip_vs is loaded."""


class SysctlStoreError(DataplaneError):
    """The file with the old values can't be read or written; the text names it."""


def path_of(name: str) -> Path:
    """The file of a dotted name; ``/`` inside a part stands for a dot (sysctl(8): ``net.ipv4.conf.eth0/1.rp_filter``).

    Raises ValueError when the name would leave /proc/sys.
    """
    parts = [part.replace("/", ".") for part in name.split(".")]
    if any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"{name!r} is not the name of a sysctl")
    return _PROC_SYS.joinpath(*parts)


class Sysctls:
    """Reads and writes; with a store, each value is remembered before it is changed for the first time."""

    def __init__(self, namespace: str | None = None, store: "SysctlStore | None" = None) -> None:
        self._namespace = namespace
        self._store = store

    def read(self, names: Iterable[str]) -> dict[str, str]:
        """The values, with runs of white space as one space; a parameter that does not exist is left out."""
        found: dict[str, str] = {}
        with entered(self._namespace):
            for name in names:
                try:
                    found[name] = " ".join(path_of(name).read_text().split())
                except FileNotFoundError:
                    continue
                except OSError as error:
                    raise KernelRefused(error.errno or 0, f"read {name}") from error
        return found

    def write(self, name: str, value: str) -> bool:
        """Set it unless it has the value already; whether it had to be changed. Raises KernelRefused.

        A machine that forwards IPv6 no longer listens to router advertisements where accept_ra is 1, and loses the
        default route that it learnt from one. So before forwarding is switched on, accept_ra becomes 2 on the
        interfaces that were listening (ip-sysctl.rst); later ones are left alone.
        """
        before = self.read([name]).get(name)
        if before == value:
            return False
        if (name, value) == (IPV6_FORWARDING, "1"):
            for listening in self._listening():
                self.write(listening, "2")
        if self._store is not None and before is not None:
            self._store.remember(name, before)
        self._write(name, value)
        return True

    def restore(self) -> dict[str, str]:
        """Give every remembered parameter its old value and forget it; what was restored.

        A parameter that no longer exists (its interface is gone) has nothing to be restored.
        """
        if self._store is None:
            return {}
        restored: dict[str, str] = {}
        for name, value in self._store.values().items():
            if self.read([name]):
                self._write(name, value)
                restored[name] = value
        self._store.clear()
        return restored

    def _listening(self) -> list[str]:
        """The accept_ra of each interface that listens to router advertisements as long as nothing is forwarded."""
        with entered(self._namespace):
            found = sorted(path.name for path in (_PROC_SYS / "net/ipv6/conf").glob("*"))
        names = [f"net.ipv6.conf.{device.replace('.', '/')}.accept_ra" for device in found]
        values = self.read(name for name, device in zip(names, found, strict=True) if device not in ("all", "default"))
        return [name for name, value in values.items() if value == "1"]

    def _write(self, name: str, value: str) -> None:
        with entered(self._namespace):
            try:
                path_of(name).write_text(value)
            except OSError as error:
                raise KernelRefused(error.errno or 0, f"set {name} to {value}") from error


class SysctlStore:
    """The values that parameters had before we changed them: JSON, on disk before the change is made."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def values(self) -> dict[str, str]:
        """Name to old value. Raises SysctlStoreError when the file is damaged."""
        try:
            content = json.loads(self._path.read_text())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise self._unreadable(str(error)) from error
        if not isinstance(content, dict) or not all(isinstance(value, str) for value in content.values()):
            raise self._unreadable("not an object of strings")
        return content

    def remember(self, name: str, value: str) -> None:
        """Keep the first value only: a second change starts from our own."""
        known = self.values()
        if name not in known:
            self._save({**known, name: value})

    def clear(self) -> None:
        """Forget all."""
        self._path.unlink(missing_ok=True)

    def _save(self, values: Mapping[str, str]) -> None:
        draft = self._path.with_name(self._path.name + ".new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with draft.open("w") as file:
                json.dump(values, file, sort_keys=True, indent=1)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self._path)
        except OSError as error:
            raise SysctlStoreError(f"{self._path} can't be written ({error}): the old values would be lost") from error

    def _unreadable(self, why: str) -> SysctlStoreError:
        return SysctlStoreError(f"{self._path} can't be read ({why}): remove it to give up the old values")

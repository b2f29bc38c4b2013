"""A BIRD of paper: the control protocol over a unix socket, on the same files as the real one.

It understands of the configuration what this project renders (static and BGP protocols, includes)
and keeps BIRD's habits that matter: a `configure` puts every protocol back to what the file says, a
quoted unknown name is 8003, a bare one 9001, and a session that is down exports "No valid tables".
"""

import asyncio
import glob
import re
from dataclasses import dataclass, field
from pathlib import Path

_BLOCK = re.compile(r"^protocol (?P<kind>\w+) (?P<name>\w+) \{\n(?P<body>.*?)^\}", re.MULTILINE | re.DOTALL)
_INCLUDE = re.compile(r'^include "(?P<path>[^"]+)";', re.MULTILINE)
_KINDS = {"static": "Static", "bgp": "BGP", "device": "Device", "bfd": "BFD", "kernel": "Kernel"}
_SINCE = "2001-01-01T00:00:00.000"


class ConfigFault(Exception):
    """A configuration that the fake cannot read: BIRD's FILE:LINE:COLUMN text."""


@dataclass
class _Protocol:
    kind: str
    on: bool
    prefixes: tuple[str, ...] = ()
    channels: tuple[int, ...] = ()
    since: str = _SINCE


@dataclass
class FakeBird:
    """One fake BIRD. `sessions_up` says whether its BGP sessions are Established."""

    socket_path: Path
    config_file: Path
    sessions_up: bool = True
    protocols: dict[str, _Protocol] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)
    starts: int = 0
    configured: int = 0
    _server: asyncio.Server | None = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)
    _running: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self) -> None:
        """Read the configuration and listen."""
        self.protocols = self._read(self.config_file)
        self.starts += 1
        self._running.set()
        self._server = await asyncio.start_unix_server(self._serve, self.socket_path)

    async def kill(self) -> None:
        """End at once, in mid-command too; the socket file stays, as after SIGKILL."""
        if self._server is not None:
            self._server.close()
            for writer in tuple(self._writers):
                writer.transport.abort()
            self._running.set()
            await self._server.wait_closed()
            self._server = None

    def freeze(self) -> None:
        """Answer nothing any more; connections are still taken."""
        self._running.clear()

    def thaw(self) -> None:
        """Go on, with what was asked meanwhile."""
        self._running.set()

    def exported(self) -> tuple[str, ...]:
        """What a neighbour has been sent."""
        if not self.sessions_up:
            return ()
        up = [protocol for protocol in self.protocols.values() if protocol.kind == "Static" and protocol.on]
        channels = {version for protocol in self.protocols.values() for version in protocol.channels}
        prefixes = [prefix for protocol in up for prefix in protocol.prefixes]
        return tuple(prefix for prefix in prefixes if (6 if ":" in prefix else 4) in channels)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        restricted = False
        try:
            await self._running.wait()
            writer.write(b"0001 BIRD 2.0.12 ready.\n")
            while line := await reader.readline():
                await self._running.wait()
                command = line.decode().rstrip("\n")
                self.commands.append(command)
                if command == "restrict":
                    restricted = True
                    writer.write(b"0016 Access restricted\n")
                elif restricted and command.split()[0] in ("enable", "disable", "configure"):
                    writer.write(b"8007 Access denied\n")
                else:
                    writer.write(self._answer(command).encode())
        except ConnectionError:
            pass  # the client went away
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    def _answer(self, command: str) -> str:
        verb, *words = command.split()
        if verb in ("enable", "disable") and len(words) == 1:
            return self._switch(verb == "enable", words[0])
        if verb == "configure" and (words in ([], ["soft"]) or words[:1] == ["check"]):
            return self._configure(words)
        match words:
            case ["status"]:
                return (
                    "1000-BIRD 2.0.12\n1011-Router ID is 10.77.0.1\n Hostname is fake\n"
                    f" Last reboot on {_SINCE}{self.starts}\n Last reconfiguration on {_SINCE}{self.configured}\n"
                    "0013 Daemon is up and running\n"
                )
            case ["protocols"]:
                return self._show_protocols()
            case ["bfd", "sessions"]:
                return (
                    "1020-bgplb_bfd:\n IP address  Interface  State  Since  Interval  Timeout\n"
                    f" 10.77.0.0  fake0  Up  {_SINCE}  0.050  0.150\n0000 \n"
                )
            case ["route", "exported" | "protocol" as of, name]:
                return self._show_route(of, name)
            case _:
                return "9001 syntax error, unexpected CF_SYM_UNDEFINED\n"

    def _switch(self, on: bool, name: str) -> str:
        if not name.startswith('"'):
            return "9001 syntax error, unexpected CF_SYM_UNDEFINED\n"
        protocol = self.protocols.get(name.strip('"'))
        if protocol is None:
            return "8003 No protocols match\n"
        said = {True: (11, 10, "enabled"), False: (9, 8, "disabled")}[on]
        same, protocol.on = protocol.on == on, on
        code, text = (said[1], f"already {said[2]}") if same else (said[0], said[2])
        return f"{code:04d}-{name.strip(chr(34))}: {text}\n0000 \n"

    def _configure(self, words: list[str]) -> str:
        path = Path(words[1].strip('"')) if len(words) > 1 else self.config_file
        reading = f"0002-Reading configuration from {path}\n"
        try:
            fresh = self._read(path)
        except ConfigFault as fault:
            return f"{reading}8002 {fault}\n"
        if words[:1] == ["check"]:
            return reading + "0020 Configuration OK\n"
        self.protocols = fresh
        self.configured += 1
        return reading + "0003 Reconfigured\n"

    def _read(self, path: Path) -> dict[str, _Protocol]:
        if not path.exists():
            raise ConfigFault(f"{path}: No such file or directory")
        text = path.read_text()
        for number, line in enumerate(text.splitlines(), 1):
            if "nonsense" in line:
                raise ConfigFault(f"{path}:{number}:1 syntax error, unexpected CF_SYM_UNDEFINED")
        found: dict[str, _Protocol] = {}
        for match in _BLOCK.finditer(text):
            body = match["body"]
            prefixes = tuple(re.findall(r"route (\S+) blackhole;", body))
            channels = tuple(int(version) for version in re.findall(r"ipv([46]) \{", body))
            on = "disabled;" not in body
            found[match["name"]] = _Protocol(
                _KINDS[match["kind"]], on, prefixes, channels if match["kind"] == "bgp" else ()
            )
        for include in _INCLUDE.finditer(text):
            for name in sorted(glob.glob(include["path"])):
                found |= self._read(Path(name))
        return found

    def _show_protocols(self) -> str:
        rows = []
        for name, protocol in self.protocols.items():
            up = protocol.on and (self.sessions_up or protocol.kind != "BGP")
            info = ("Established" if up else "Active") if protocol.kind == "BGP" else ""
            rows.append(f"{name} {protocol.kind} master4 {'up' if up else 'down'} {protocol.since} {info}")
        body = "".join(f" {row}\n" for row in rows[1:])
        first = f"1002-{rows[0]}\n" if rows else ""
        return f"2002-Name Proto Table State Since Info\n{first}{body}0000 \n"

    def _show_route(self, of: str, name: str) -> str:
        protocol = self.protocols.get(name)
        if protocol is None:
            return "9001 syntax error, unexpected CF_SYM_UNDEFINED, expecting CF_SYM_KNOWN\n"
        if of == "exported" and not (self.sessions_up and protocol.on):
            return "9001 No valid tables\n"
        prefixes = self.exported() if of == "exported" else protocol.prefixes if protocol.on else ()
        if not prefixes:
            return "0000 \n"
        rows = "".join(f" {prefix}  blackhole [x {_SINCE}] * (200)\n" for prefix in prefixes)
        return f"1007-Table master4:\n{rows}0000 \n"

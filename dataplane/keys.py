"""WireGuard keys: made on the machine, kept in a file that nobody else may read, never shown.

X25519 (RFC 7748) comes from the package `cryptography`, the only vetted implementation that needs no program started
with the key in its arguments or pipes.
"""

import base64
import binascii
import os
import stat
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from dataplane.errors import KeyFileError

KEY_BYTES = 32
_MODE = 0o600


class PrivateKey:
    """A private key that can't be printed by accident."""

    __slots__ = ("_raw",)

    def __init__(self, raw: bytes) -> None:
        """`raw`: 32 bytes. Raises ValueError without showing them."""
        if len(raw) != KEY_BYTES:
            raise ValueError(f"a private key has {KEY_BYTES} bytes")
        self._raw = raw

    @classmethod
    def generate(cls) -> "PrivateKey":
        """A new key from the operating system's random numbers."""
        return cls(X25519PrivateKey.generate().private_bytes_raw())

    @property
    def public(self) -> str:
        """The public key, in base64 as `wg` prints it."""
        public = X25519PrivateKey.from_private_bytes(self._raw).public_key().public_bytes_raw()
        return base64.b64encode(public).decode()

    def secret_hex(self) -> str:
        """The key itself in hexadecimal, for the WireGuard socket and nothing else."""
        return self._raw.hex()

    def secret_base64(self) -> str:
        """The key itself in base64, for the file, the kernel's netlink call, and nothing else."""
        return base64.b64encode(self._raw).decode()

    def __repr__(self) -> str:
        return "PrivateKey(hidden)"


def public_key_bytes(public_key: str) -> bytes:
    """The 32 bytes of a base64 public key. Raises ValueError (naming it: it is public)."""
    try:
        raw = base64.b64decode(public_key, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"{public_key!r} is not a WireGuard public key: not base64") from error
    if len(raw) != KEY_BYTES:
        raise ValueError(f"{public_key!r} is not a WireGuard public key: {len(raw)} bytes, not {KEY_BYTES}")
    return raw


def public_key_text(raw: bytes) -> str:
    """The base64 spelling of 32 bytes."""
    return base64.b64encode(raw).decode()


def parking_key() -> str:
    """A public key that nobody has the private key of, for a peer that only takes prefixes away from others."""
    return PrivateKey.generate().public


def read_private_key(path: Path) -> PrivateKey:
    """The key in this file (base64, one line).

    Raises KeyFileError when it is absent, not a plain file, readable or writable by group or others, not owned by the
    user we run as or root, or holds no key.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise KeyFileError(f"private key file {path} can't be opened: {error.strerror}") from error
    try:
        _check_permissions(path, os.fstat(descriptor))
        content = os.read(descriptor, 4 * KEY_BYTES)
    finally:
        os.close(descriptor)
    try:
        return PrivateKey(base64.b64decode(content.strip(), validate=True))
    except ValueError:
        # Chained to nothing: the cause's text may hold the content.
        raise KeyFileError(
            f"private key file {path} does not hold a key (44 characters of base64): restore it, "
            f"or remove it to have a new one made"
        ) from None


def ensure_private_key(path: Path) -> PrivateKey:
    """The key in this file; a new one is made, synced to disk and only then given its name, when there is none yet.

    Raises KeyFileError as :func:`read_private_key` does, or when the file can't be written.
    """
    if path.exists() or path.is_symlink():
        return read_private_key(path)
    key = PrivateKey.generate()
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
        with os.fdopen(descriptor, "w") as file:
            file.write(key.secret_base64() + "\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)  # unlike rename, never over a key that another process made meanwhile
        except FileExistsError:
            return read_private_key(path)
        finally:
            draft.unlink()
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise KeyFileError(f"private key file {path} can't be written: {error.strerror}") from error
    return key


def _check_permissions(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise KeyFileError(f"private key file {path} is not a plain file")
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise KeyFileError(
            f"private key file {path} has mode {mode:04o}: others may read or change it; "
            f"0600 or 0400 is allowed (chmod 600 {path}, and think of the key as known)"
        )
    if status.st_uid not in (0, os.geteuid()):
        raise KeyFileError(f"private key file {path} belongs to user {status.st_uid}, not to us or root: chown it")

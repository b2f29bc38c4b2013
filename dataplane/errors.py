"""The one error tree of this package.

Callers never see an error of pyroute2, asyncio or the operating system: those may be replaced, and their texts say
neither what was attempted nor what to do next. The cause is always chained.
"""

import errno as errno_names
import os


class DataplaneError(Exception):
    """Base of every error that this package raises on purpose."""


class KernelError(DataplaneError):
    """The kernel, or a program that speaks to it for us, did not do what was asked."""


class KernelRefused(KernelError):
    """The kernel answered and said no: nothing was changed by this operation.

    ``errno`` is the kernel's number (0 when a program gave only a text), ``op`` what was attempted.
    """

    def __init__(self, errno: int, op: object, detail: str = "") -> None:
        name = errno_names.errorcode.get(errno, str(errno))
        reason = detail or os.strerror(errno)
        super().__init__(f"the kernel refused {op}: {name}: {reason}")
        self.errno = errno
        self.op = op


class KernelTimeout(KernelError):
    """No answer in time: Indeterminate. It may or may not have been done; read back before deciding anything."""

    def __init__(self, op: object, seconds: float) -> None:
        super().__init__(f"no answer within {seconds:g} s to {op}: it may have been done, read back before going on")
        self.op = op


class Conflict(KernelError):
    """Something that is not ours stands where ours must be. Nothing was changed; an operator has to decide.

    ``problems`` names each object and says what would resolve it.
    """

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class ProgramMissing(KernelError):
    """A program that this package starts is not installed in any of the trusted folders."""

    def __init__(self, program: str, package: str, folders: tuple[str, ...]) -> None:
        super().__init__(f"{program} was not found in {', '.join(folders)}: install the package {package}")
        self.program = program
        self.package = package


class FeatureMissing(KernelError):
    """This kernel was built without something that was asked for; the text names it."""


class KeyFileError(DataplaneError):
    """A private key file can't be used. The text names path and reason, never the key."""

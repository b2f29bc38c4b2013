"""What can go wrong between us and BIRD: one small tree, caught at one place."""

from pathlib import Path


class BirdError(Exception):
    """Anything that kept BIRD from doing, or telling, what it was asked."""


class ProtocolError(BirdError):
    """The bytes on the socket are not BIRD's control protocol, or a reply is larger than allowed."""


class BirdFileUnwritable(BirdError):
    """A file that BIRD reads could not be written: what is in force, and what it says, is as it was."""

    def __init__(self, path: Path, error: OSError) -> None:
        self.path = path
        super().__init__(f"{path}: can't be written: {error.strerror}; is its file system full?")


class BirdUnreachable(BirdError):
    """No BIRD answers at this socket: absent, refused, or the connection ended in mid-command.

    `sent` is true when commands had been written before the connection ended: they may have been
    done, so read back before deciding.
    """

    def __init__(self, path: Path, reason: str, *, sent: bool = False) -> None:
        self.path = path
        self.reason = reason
        self.sent = sent
        doubt = "; what was asked may have been done, read back" if sent else ""
        super().__init__(f"BIRD at {path} is unreachable: {reason}{doubt}; see whether its service runs")


class BirdTimeout(BirdError):
    """BIRD did not answer within the deadline (seconds): indeterminate when `sent` is true.

    With `sent` the commands were written and may yet be done, when BIRD runs again: read back before
    deciding. Without it they were not, and will not be.
    """

    def __init__(self, path: Path, doing: str, timeout_s: float, *, sent: bool) -> None:
        self.path = path
        self.doing = doing
        self.timeout_s = timeout_s
        self.sent = sent
        outcome = "it may have been done, read back" if sent else "it was not sent"
        super().__init__(f"BIRD at {path} did not answer {doing!r} within {timeout_s:g} s: {outcome}")


class BirdRefused(BirdError):
    """BIRD understood and said no: an 8xxx or 9xxx reply.

    `text` is BIRD's own; for a configuration it begins with FILE:LINE:COLUMN.
    """

    def __init__(self, code: int, text: str, command: str) -> None:
        self.code = code
        self.text = text
        self.command = command
        super().__init__(f"BIRD refused {command!r}: {code:04d} {text}")


class BirdUnsettled(BirdError):
    """BIRD took the configuration, and what it exports still differs from it after the time to settle (seconds).

    `differences` says for each what is missing or too much, and at which session.
    """

    def __init__(self, path: Path, differences: tuple[str, ...], settle_s: float) -> None:
        self.path = path
        self.differences = differences
        self.settle_s = settle_s
        super().__init__(
            f"BIRD at {path} has not settled after {settle_s:g} s: {'; '.join(differences)}; "
            "see `show protocols all` of these protocols"
        )

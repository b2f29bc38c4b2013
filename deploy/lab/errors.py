"""What can go wrong in the lab, with the exit code each error stands for (the command line's own table)."""


class LabError(Exception):
    """Base of the lab's errors: the text names what failed, where, and what to do next."""

    exit_code = 1


class Usage(LabError):
    """A command was given something that it does not take."""

    exit_code = 2


class BadInput(LabError):
    """A scenario file is not as it should be: the text names file, field, value and what is allowed."""

    exit_code = 3


class MissingPrerequisite(LabError):
    """Not root, a program is absent, or the kernel lacks a feature."""

    exit_code = 8


class NotFound(LabError):
    """No such lab, machine, service or fault."""

    exit_code = 4


class Unreachable(LabError):
    """A machine's first process or a daemon does not answer."""

    exit_code = 5


class RefusedByState(LabError):
    """The lab is not in a state in which this can be done."""

    exit_code = 6


class TimedOut(LabError):
    """Something did not happen in its time; the text says what was seen last."""

    exit_code = 7

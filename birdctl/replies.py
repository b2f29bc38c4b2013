"""BIRD's reply codes, as documented in its source under doc/reply_codes and seen from BIRD 2.0.12.

Decide by code, never by text: the texts change between releases. Also between releases a code may
move: `configure` answers 0003 when it is done at once and 0004 when something has still to be
flushed, and BIRD 3 says 0004 nearly always.
"""

from enum import Enum, IntEnum


class ReplyClass(Enum):
    """What the thousands of a reply code say."""

    DONE = 0
    """0xxx: the command was accepted; ends a reply."""
    DATA = 1
    """1xxx: a row."""
    HEADING = 2
    """2xxx: a heading of rows."""
    RUNTIME_ERROR = 8
    """8xxx: understood, and not possible now."""
    SYNTAX_ERROR = 9
    """9xxx: not understood. BIRD uses it also for an unknown name and for some states."""


class Code(IntEnum):
    """The codes that this package reads."""

    OK = 0
    """End of a table, or plainly done."""
    WELCOME = 1
    """Greeting of a new connection."""
    READING_CONFIGURATION = 2
    """First line of `configure`."""
    RECONFIGURED = 3
    """The new configuration is in force."""
    RECONFIGURATION_IN_PROGRESS = 4
    """Accepted; some protocols are still being flushed."""
    RECONFIGURATION_QUEUED = 5
    """Accepted; begins when the one in progress has ended."""
    SHUTTING_DOWN = 6
    """Reconfiguration ignored: BIRD is on its way out. An error to us, though of class 0xxx."""
    ALREADY_DISABLED = 8
    """`disable` found the protocol disabled."""
    DISABLED = 9
    """`disable` did it."""
    ALREADY_ENABLED = 10
    """`enable` found the protocol enabled."""
    ENABLED = 11
    """`enable` did it."""
    STATUS = 13
    """Last line of `show status`."""
    ROUTE_COUNT = 14
    """Total of `show route count`."""
    RESTRICTED = 16
    """The connection is now read-only."""
    CONFIGURATION_OK = 20
    """`configure check` found no fault."""
    VERSION = 1000
    """First line of `show status`."""
    PROTOCOL_ROW = 1002
    """A row of `show protocols`."""
    PROTOCOL_DETAILS = 1006
    """Details below such a row."""
    ROUTE_ROW = 1007
    """A row of `show route`, or the name of the table above the rows."""
    UPTIME = 1011
    """Router id and instants of `show status`."""
    BFD_ROW = 1020
    """A row, or the heading, of `show bfd sessions`."""
    PROTOCOL_HEADING = 2002
    """The heading of `show protocols`."""
    REPLY_TOO_LONG = 8000
    """BIRD ran out of room for its answer."""
    ROUTE_NOT_FOUND = 8001
    """No such network: an empty list, not a fault."""
    CONFIGURATION_ERROR = 8002
    """The file is wrong; the text begins with file, line and column."""
    NO_PROTOCOL_MATCHES = 8003
    """No protocol has such a (quoted) name."""
    PROTOCOL_DOWN = 8005
    """The protocol is down."""
    ACCESS_DENIED = 8007
    """The connection is restricted."""
    PARSE_ERROR = 9001
    """Not understood; also an unknown (unquoted) name, and `show route exported` of a session that is down."""


def reply_class(code: int) -> ReplyClass:
    """The class of a code 0..9999. Raises ValueError for a thousand that BIRD does not use."""
    return ReplyClass(code // 1000)


def is_refusal(code: int) -> bool:
    """Whether a reply that ends with this code says no."""
    return code >= 8000 or code == Code.SHUTTING_DOWN

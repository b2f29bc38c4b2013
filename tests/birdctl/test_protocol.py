"""The control protocol, byte by byte."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from birdctl.errors import ProtocolError
from birdctl.protocol import Line, Parser, Reply
from birdctl.replies import Code, ReplyClass, is_refusal, reply_class

STREAM = (
    b"0001 BIRD 2.0.12 ready.\n"
    b"2002-Name       Proto\n1002-bgplb_device Device\n bgplb_bfd  BFD\n0000 \n"
    b"+async line, after echo\n"
    b"0002-Reading configuration from bird.conf\n8002 /x/bird.conf:3:7 syntax error\n"
    b"0013 \n"
)
REPLIES = [
    Reply(1, (Line(1, "BIRD 2.0.12 ready."),)),
    Reply(
        0,
        (
            Line(2002, "Name       Proto"),
            Line(1002, "bgplb_device Device"),
            Line(1002, "bgplb_bfd  BFD"),
            Line(0, ""),
        ),
    ),
    Reply(8002, (Line(2, "Reading configuration from bird.conf"), Line(8002, "/x/bird.conf:3:7 syntax error"))),
    Reply(13, (Line(13, ""),)),
]


def test_a_whole_stream_at_once() -> None:
    parser = Parser()
    assert parser.feed(STREAM) == REPLIES
    assert parser.idle


def test_byte_by_byte_gives_the_same_and_each_reply_with_its_last_byte() -> None:
    parser = Parser()
    found: list[Reply] = []
    for position in range(len(STREAM)):
        fresh = parser.feed(STREAM[position : position + 1])
        assert not fresh or STREAM[position : position + 1] == b"\n"
        found += fresh
    assert found == REPLIES


@given(st.lists(st.integers(min_value=0, max_value=len(STREAM)), max_size=12))
def test_any_cut_of_the_stream_gives_the_same(cuts: list[int]) -> None:
    parser = Parser()
    edges = [0, *sorted(cuts), len(STREAM)]
    found = [reply for begin, end in itertools.pairwise(edges) for reply in parser.feed(STREAM[begin:end])]
    assert found == REPLIES


_texts = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), max_size=40)


@given(st.lists(st.tuples(st.integers(0, 9999), _texts, st.booleans()), min_size=1, max_size=8), st.integers(1, 7))
def test_what_is_written_is_read(rows: list[tuple[int, str, bool]], step: int) -> None:
    """Any lines, some as continuations, cut into steps of any size."""
    raw = b""
    expected: list[Line] = []
    for index, (code, text, continued) in enumerate(rows):
        last = index == len(rows) - 1
        if continued and expected and not last:
            raw += f" {text}\n".encode()
            expected.append(Line(expected[-1].code, text))
        else:
            raw += f"{code:04d}{' ' if last else '-'}{text}\n".encode()
            expected.append(Line(code, text))
    parser = Parser()
    found = [reply for begin in range(0, len(raw), step) for reply in parser.feed(raw[begin : begin + step])]
    assert found == [Reply(expected[-1].code, tuple(expected))]


@given(st.binary(max_size=200))
def test_any_bytes_give_replies_or_a_protocol_error_and_nothing_else(data: bytes) -> None:
    parser = Parser(max_line_bytes=64, max_reply_bytes=128)
    try:
        replies = parser.feed(data)
    except ProtocolError:
        with pytest.raises(ProtocolError):
            parser.feed(b"0000 \n")
    else:
        assert all(reply.lines[-1].code == reply.code for reply in replies)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b" continued\n", "continuation"),
        (b"hello\n", "without a code"),
        (b"000x text\n", "without a code"),
        (b"0000\n", "without a code"),
        (b"0000_text\n", "without a code"),
        (b"SSH-2.0-OpenSSH_9.2p1\r\n", "without a code"),
        (b"\n", "without a code"),
        (b"0000-" + b"x" * 64 + b"\n", "line of more than 64"),
        (b"x" * 65, "line of more than 64"),
        (b"1000-0123456789\n" * 9, "reply of more than 128"),
    ],
)
def test_what_is_not_the_protocol_is_refused(data: bytes, says: str) -> None:
    parser = Parser(max_line_bytes=64, max_reply_bytes=128)
    with pytest.raises(ProtocolError, match=says):
        parser.feed(data)


def test_the_bound_is_on_one_reply_not_on_the_stream() -> None:
    parser = Parser(max_line_bytes=64, max_reply_bytes=128)
    assert sum(len(parser.feed(b"0000 0123456789\n")) for _ in range(100)) == 100


def test_a_reply_knows_its_lines_by_code() -> None:
    (reply,) = Parser().feed(b"0011-a: enabled\n0010-b: already enabled\n0000 \n")
    assert reply.texts(Code.ENABLED) == ("a: enabled",)
    assert reply.has(Code.ALREADY_ENABLED)
    assert not reply.refused


def test_classes_and_refusals() -> None:
    assert reply_class(Code.NO_PROTOCOL_MATCHES) is ReplyClass.RUNTIME_ERROR
    assert reply_class(Code.PARSE_ERROR) is ReplyClass.SYNTAX_ERROR
    assert reply_class(Code.BFD_ROW) is ReplyClass.DATA
    with pytest.raises(ValueError, match="5"):
        reply_class(5000)
    refusals = {code for code in Code if is_refusal(code)}
    assert refusals == {code for code in Code if code >= 8000} | {Code.SHUTTING_DOWN}

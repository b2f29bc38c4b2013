"""Sentences that name things stay readable with a thousand of them."""

from orchestrator.listing import few


def test_few_names_are_all_there_in_order() -> None:
    assert few(["gw-b", "gw-a"]) == "gw-a, gw-b"
    assert few([]) == "none"
    assert few([], "none at all") == "none at all"


def test_many_are_counted() -> None:
    assert few(f"p{n:04d}" for n in range(1000)).endswith("p0007 and 992 more")
    assert few(f"p{n}" for n in range(8)).endswith("p7")

"""Names in a sentence: a few of them, and how many more there are."""

from collections.abc import Iterable

SHOWN = 8
"""Names that a sentence bears."""


def few(names: Iterable[str], empty: str = "none") -> str:
    """The names in order, the first eight if there are more; `empty` if there is none."""
    ordered = sorted(names)
    shown = ", ".join(ordered[:SHOWN]) or empty
    return f"{shown} and {len(ordered) - SHOWN} more" if len(ordered) > SHOWN else shown

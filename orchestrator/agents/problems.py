"""What an agent can't do at present: one text a place, told once in the log, and shown until it is over."""

from collections.abc import Callable, Mapping


class Problems:
    """By place, such as `kernel` or `bird`."""

    def __init__(self, log: Callable[..., None]) -> None:
        self._log = log
        self._texts: dict[str, str] = {}

    def __contains__(self, where: str) -> bool:
        return where in self._texts

    def __bool__(self) -> bool:
        return bool(self._texts)

    def set(self, where: str, error: object) -> None:
        """Something is wrong there."""
        text = str(error)
        if self._texts.get(where) != text:
            self._log("problem", where=where, what=text)
        self._texts[where] = text

    def clear(self, *where: str) -> None:
        """Nothing is wrong there any more."""
        for place in where:
            self._texts.pop(place, None)

    def exactly(self, kind: str, texts: Mapping[str, str]) -> None:
        """Of one kind of place, these and no others."""
        present = {f"{kind} {name}": text for name, text in texts.items()}
        self.clear(*(place for place in self._texts.copy() if place.startswith(f"{kind} ") and place not in present))
        for place, text in present.items():
            self.set(place, text)

    def get(self, where: str) -> str:
        """What is wrong there; empty if nothing is."""
        return self._texts.get(where, "")

    def told(self) -> tuple[str, ...]:
        """All of them, as they are reported."""
        return tuple(f"{where}: {text}" for where, text in sorted(self._texts.items()))

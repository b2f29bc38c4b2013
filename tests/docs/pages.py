"""The pages that people read, and what is found in them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
TOP = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")

_FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:^|\n)\n((?: {4}.*(?:\n|$))+)")
_SPAN = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Page:
    """One Markdown file: its path from the root of the repository, and its text."""

    name: str
    text: str

    @property
    def prose(self) -> str:
        """The text without blocks of code."""
        return _INDENTED.sub("\n\n", _FENCE.sub("\n", self.text))

    def links(self) -> list[str]:
        """Targets of links and pictures."""
        return _LINK.findall(self.prose)

    def blocks(self, language: str) -> list[str]:
        """Bodies of fenced blocks in that language."""
        return [match["body"] for match in _FENCE.finditer(self.text) if match["language"] == language]

    def spans(self) -> list[str]:
        """Code within the prose."""
        return _SPAN.findall(self.prose)

    def commands(self) -> Iterator[str]:
        """What a reader may type: spans, and lines of blocks that are in no language or a shell's."""
        yield from self.spans()
        for language in ("", "sh", "console"):
            for body in self.blocks(language):
                yield from body.splitlines()
        for match in _INDENTED.finditer(_FENCE.sub("\n", self.text)):
            yield from (line.strip() for line in match[1].splitlines())

    def anchors(self) -> set[str]:
        """What a link may name behind `#`: the headings, as GitHub writes them."""
        words = (heading.strip().lower().replace("`", "") for heading in _HEADING.findall(self.prose))
        return {re.sub(r"[^\w\- ]", "", text).replace(" ", "-") for text in words}


def pages() -> list[Page]:
    """All of them."""
    files = [REPOSITORY / name for name in TOP] + sorted((REPOSITORY / "docs").rglob("*.md"))
    return [Page(path.relative_to(REPOSITORY).as_posix(), path.read_text(encoding="utf-8")) for path in files]

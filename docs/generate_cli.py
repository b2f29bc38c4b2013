"""Write docs/cli.md from the command line itself: `python docs/generate_cli.py`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from orchestrator.cli.main import app

FILE = Path(__file__).resolve().parent / "cli.md"
WIDTH = 100

HEAD = """# Command line

Generated from the commands; do not edit. `bgplb COMMAND --help` shows the same. `bgplb lab` is a plug-in and described
by its own help.

- The commands that look or ask find the store by `--config FILE`, `BGPLB_CONFIG`, or the first of `cli.yaml`,
  `orchestrator.yaml`, `edge-agent.yaml`, `node-agent.yaml` in `/etc/bgplb`.
- `-o json` carries `"schema": 1`. Every view says how old its data is.
- A command that asks for something waits 10 s for the leader's answer. If none comes it takes the request back, so that
  nothing happens later that nobody waits for.

| exit | meaning |
| --- | --- |
| 0, 1 | done; a check failed |
| 2, 3 | wrong usage; bad input (file, manifest, configuration) |
| 4, 5 | not found; store or daemon unreachable |
| 6, 7 | refused by the state it is in; timed out |
| 8 | a prerequisite is missing (not root, package, kernel feature) |
"""


def generated() -> dict[Path, str]:
    """The generated file with the text that it must have."""
    root = typer.main.get_command(app)
    return {FILE: HEAD + "".join(_pages(root, "bgplb"))}


def _pages(command: Any, path: str, parent: Any = None) -> Iterator[str]:
    context = type(command).context_class(
        command,
        info_name=path.rpartition(" ")[2],
        parent=parent,
        terminal_width=WIDTH,
        max_content_width=WIDTH,
        help_option_names=["-h", "--help"],
    )
    children = getattr(command, "commands", {})
    if parent is not None:
        text = "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
        yield f"\n## {path}\n\n```\n{text}\n```\n"
    names = [name for name in command.list_commands(context) if name in children] if children else []
    for name in names:
        yield from _pages(children[name], f"{path} {name}", context)


def main() -> None:
    """Write it."""
    for path, text in generated().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

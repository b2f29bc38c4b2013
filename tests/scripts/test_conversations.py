"""Every conversation in this folder comes out as it is written there; `--rewrite` writes it anew."""

from pathlib import Path

import pytest

from tests.scripts.conversation import Conversation, converse, read, written

FILES = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_conversation(path: Path, request: pytest.FixtureRequest) -> None:
    answered = list(converse(list(read(path))))
    if request.config.getoption("--rewrite", default=False):
        path.write_text("\n".join(written(block, output) for block, output in answered), encoding="utf-8")
        return
    for block, output in answered:
        assert output == block.expected, f"{path.name}: after {'; '.join(block.commands)}"
        assert "VIOLATION" not in output


def test_files_are_as_a_rewrite_would_leave_them() -> None:
    for path in FILES:
        text = "\n".join(written(block, block.expected) for block in read(path))
        assert path.read_text(encoding="utf-8") == text, path.name


def test_a_block_without_its_separator_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "broken.txt"
    path.write_text("think\n")
    with pytest.raises(ValueError, match="has no line ----"):
        list(read(path))


@pytest.mark.parametrize("command", ["dance", "gateway gw-a dance"])
def test_an_unknown_command_is_refused(command: str) -> None:
    with pytest.raises(ValueError, match=r"no (command|fault)"):
        Conversation().say(command)

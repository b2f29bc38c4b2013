"""The set-up scripts: what they say when something is missing, and that they leave services as they were."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.style.sources import REPOSITORY, SETUP


@pytest.fixture(autouse=True)
def setup_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripts run from their own folder, so that is how they find each other."""
    monkeypatch.syspath_prepend(str(REPOSITORY / SETUP))


def script(name: str) -> Any:
    return importlib.import_module(name)


def write_program(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_a_stub_of_a_python_is_refused(tmp_path: Path) -> None:
    probe = script("interpreter").Interpreter.probe
    assert probe(str(tmp_path / "absent")) is None
    assert probe(write_program(tmp_path / "stub", "#!/bin/sh\necho 'version not selected' >&2; exit 127\n")) is None
    assert probe(write_program(tmp_path / "old", "#!/bin/sh\necho 3 10 4 /usr/bin/python3.10\n")) is None
    found = probe(write_program(tmp_path / "new", "#!/bin/sh\necho 3 12 1 /usr/bin/python3.12\n"))
    assert found == ("/usr/bin/python3.12", "3.12.1")


def test_the_environment_that_is_there_is_kept(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    python = write_program(tmp_path / "bin" / "python", f"#!/bin/sh\necho 3 99 0 {tmp_path}/bin/python\n")
    assert script("interpreter").find_interpreter(tmp_path) == (python, "3.99.0")
    assert script("interpreter").find_interpreter(tmp_path / "absent").version == ".".join(
        map(str, sys.version_info[:3])
    )


@pytest.mark.parametrize(
    ("output", "told"),
    [
        ("Err:1 mirror\n  Temporary failure resolving 'mirror'\nE: Unable to fetch\n", "no network: Temporary failure"),
        ("Reading package lists...\nE: Unable to locate package bird2\n", "E: Unable to locate package bird2"),
        ("ERROR: hashes do not match\nlast words\n", "ERROR: hashes do not match"),
        ("", "it ended without a word"),
    ],
)
def test_a_failed_step_says_why(tmp_path: Path, output: str, told: str) -> None:
    steps, log = script("steps"), tmp_path / "log"
    log.write_text("E: of an earlier step\n")
    program = write_program(tmp_path / "step", f"#!/bin/sh\ncat <<'END'\n{output}END\nexit 3\n")
    with pytest.raises(steps.SetupError) as caught:
        steps.run_logged([program], log, "cannot do it")
    assert str(caught.value).startswith(f"cannot do it: {told}")
    assert steps.run_logged([program], log, "cannot do it", tolerate_failure=True) is False


def test_a_missing_program_is_one_sentence(tmp_path: Path) -> None:
    steps = script("steps")
    with pytest.raises(steps.SetupError, match=r"cannot do it: .*absent cannot be started"):
        steps.run_logged([str(tmp_path / "absent")], tmp_path / "log", "cannot do it")


@pytest.fixture
def units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, with its folders in a temporary one that looks like a machine with one enabled service."""
    module = script("units")
    wants = tmp_path / "systemd" / "multi-user.target.wants"
    wants.mkdir(parents=True)
    (wants / "ssh.service").symlink_to("/lib/systemd/system/ssh.service")
    monkeypatch.setattr(module, "SYSTEMD", tmp_path / "systemd")
    monkeypatch.setattr(module, "RUNLEVELS", tmp_path / "runlevels")
    monkeypatch.setattr(module, "POLICY", tmp_path / "policy-rc.d")
    monkeypatch.setattr(module, "POLICY_ASIDE", tmp_path / "policy-rc.d.aside")
    return module


def enable(units: Any, name: str) -> Path:
    link: Path = units.SYSTEMD / "multi-user.target.wants" / name
    link.symlink_to(f"/lib/systemd/system/{name}")
    return link


def test_what_an_installation_enabled_is_disabled_and_nothing_else(units: Any, tmp_path: Path) -> None:
    with units.disable_newly_enabled(tmp_path / "record.json"):
        assert units.POLICY.read_text() == units.OURS
        new = enable(units, "bird.service")
        masked = units.SYSTEMD / "masked.service"
        masked.symlink_to("/dev/null")
    assert not new.is_symlink()
    assert masked.is_symlink()
    assert (units.SYSTEMD / "multi-user.target.wants" / "ssh.service").is_symlink()
    assert not units.POLICY.exists()
    assert not (tmp_path / "record.json").exists()


def test_it_is_undone_after_a_failure_too(units: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="broken"), units.disable_newly_enabled(tmp_path / "record.json"):
        new = enable(units, "bird.service")
        raise ValueError("broken")
    assert not new.is_symlink()
    assert not units.POLICY.exists()


def test_the_next_run_puts_right_what_a_killed_one_left(units: Any, tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text(json.dumps(sorted(units.enabling_links())))
    units.POLICY.write_text(units.OURS)
    units.POLICY_ASIDE.write_text("#!/bin/sh\nexit 0\n")
    units.POLICY_ASIDE.chmod(0o755)
    left = enable(units, "bird.service")
    with units.disable_newly_enabled(tmp_path / "record.json"):
        pass
    assert not left.is_symlink()
    assert units.POLICY.read_text() == "#!/bin/sh\nexit 0\n"
    assert not units.POLICY_ASIDE.exists()


def test_a_policy_that_refuses_already_is_left_alone(units: Any, tmp_path: Path) -> None:
    text = "#!/bin/sh\n# the operator's own\nexit 101\n"
    write_program(units.POLICY, text)
    with units.disable_newly_enabled(tmp_path / "record.json"):
        assert units.POLICY.read_text() == text
    assert units.POLICY.read_text() == text


def test_packages_are_listed_before_any_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without root nothing is started, and the sentence names what is missing."""
    module, steps = script("setup"), script("steps")
    said: list[str] = []
    monkeypatch.setattr(module, "say", said.append)
    monkeypatch.setattr(module, "missing_packages", lambda need_venv, for_vm: ["bird2", "nftables"])
    monkeypatch.setattr(module.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(module, "install_packages", lambda *_: pytest.fail("installed without root"))
    with pytest.raises(steps.SetupError, match=r"not root.*bird2 nftables"):
        module.set_up(check_only=False, for_vm=False)
    assert any("bird2 nftables" in line for line in said)
    assert module.set_up(check_only=True, for_vm=False) == module.EXIT_MISSING


def test_what_the_virtual_machine_needs_is_asked_for_only_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    module, steps = script("packages"), script("steps")
    monkeypatch.setattr(module, "is_installed", lambda name: False)
    assert "qemu-system-x86" not in module.missing_packages(need_venv=False, for_vm=False)
    assert set(module.NEEDED_FOR_VM) <= set(module.missing_packages(need_venv=False, for_vm=True))
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    with pytest.raises(steps.SetupError, match=r"by hand: .*qemu-system-x86"):
        module.missing_packages(need_venv=False, for_vm=True)

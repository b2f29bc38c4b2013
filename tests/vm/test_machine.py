"""The outer side of the virtual machine, without one: what it needs, and how it reads what happened inside."""

import re
from pathlib import Path

import pytest

from tests.vm import machine
from tests.vm.conftest import Case, read


def test_all_that_is_missing_is_named_in_one_sentence() -> None:
    with pytest.raises(machine.Missing) as told:
        machine.check(lambda name: None)
    for package in (*machine.PROGRAMS.values(), "virtme-ng", "`make vm`"):
        assert package in str(told.value)
    assert "\n" not in str(told.value)


def test_the_newest_kernel_of_the_distribution_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "MODULES", tmp_path)
    with pytest.raises(machine.Missing, match="linux-image-amd64"):
        machine.stock_kernel(tmp_path)
    for version in ("6.1.0-9-amd64", "6.1.0-57-amd64", "6.9.1-1-cloud-arm64", "7.0.0-1-amd64"):
        (tmp_path / f"vmlinuz-{version}").touch()
        if not version.startswith("7"):  # a kernel whose modules are gone can't be used
            (tmp_path / version).mkdir()
    assert machine.stock_kernel(tmp_path).name == "vmlinuz-6.1.0-57-amd64"


RECORD = """<testsuites><testsuite>
<testcase name="good"/>
<testcase name="left_out"><skipped message="needs a moon"/></testcase>
<testcase name="bad"><failure message="1 != 2">assert 1 == 2</failure></testcase>
<testcase name="torn"><error message="teardown">no such thing</error></testcase>
</testsuite></testsuites>"""


def test_the_record_of_a_job_is_read_case_by_case(tmp_path: Path) -> None:
    record = tmp_path / "job.xml"
    assert read(record) == [], "a job that did not come to its end has no cases"
    record.write_text(RECORD)
    assert read(record) == [
        Case("good", "passed", ""),
        Case("left_out", "skipped", "needs a moon"),
        Case("bad", "failed", "assert 1 == 2"),
        Case("torn", "failed", "no such thing"),
    ]


def test_the_guests_first_words_are_those_that_are_waited_for() -> None:
    assert re.search(rf'^echo "{re.escape(machine.BOOTED)}"$', machine.FIRST.read_text(), re.M)


@pytest.mark.root
def test_a_guest_that_hangs_is_ended_with_all_that_belongs_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "vng"
    program.write_text(f"#!/bin/sh\necho '{machine.BOOTED}'\nsleep 600 &\necho $! > {tmp_path}/child\nwait\n")
    program.chmod(0o755)
    monkeypatch.setattr(machine, "PATH", f"{tmp_path}:/usr/bin:/bin")
    said: list[str] = []
    with pytest.raises(machine.VmError, match="not over in 1 s"):
        machine.boot(Path("/boot/vmlinuz"), ["true"], tmp_path, 1.0, said.append, emulate=True)
    assert said == [machine.BOOTED]
    child = (tmp_path / "child").read_text().strip()
    state = Path(f"/proc/{child}/stat")
    assert not state.exists() or ") Z " in state.read_text()


@pytest.mark.parametrize("emulated_boots", [True, False])
def test_where_hardware_virtualisation_does_not_work_it_is_emulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, emulated_boots: bool
) -> None:
    program = tmp_path / "vng"
    words = machine.BOOTED if emulated_boots else "no room"
    program.write_text(f"#!/bin/sh\ncase \"$*\" in *--disable-kvm*) echo '{words}';; *) echo 'MSR?'; exit 255;; esac\n")
    program.chmod(0o755)
    monkeypatch.setattr(machine, "PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(machine, "KVM", tmp_path)
    monkeypatch.setattr(machine, "check", lambda: None)
    monkeypatch.setattr(machine, "stock_kernel", lambda: Path("/boot/vmlinuz-6.1.0-57-amd64"))
    said: list[str] = []
    if not emulated_boots:
        with pytest.raises(machine.VmError, match="did not come up: no room"):
            machine.run(["true"], tmp_path, 10.0, said.append)
        return
    machine.run(["true"], tmp_path, 10.0, said.append)
    assert [line for line in said if "does not come up with it: MSR?" in line]
    assert "in emulation" in said[-2] and said[-1] == machine.BOOTED

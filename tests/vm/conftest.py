"""One boot for all outer tests; what happened inside, read from its records."""

import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.vm import inside, machine
from tests.vm.inside import RESULTS

WITHIN_S = 1500.0
EXIT_PREREQUISITE = 8


@dataclass(frozen=True)
class Case:
    """One test that ran inside. `how`: passed, skipped or failed; `why` is empty when it passed."""

    name: str
    how: str
    why: str


def read(record: Path) -> list[Case]:
    """The cases of one job; none when it did not come to its end."""
    if not record.exists():
        return []
    found = []
    for case in ElementTree.parse(record).getroot().iter("testcase"):
        broken = [child for child in case if child.tag in ("failure", "error")]
        skipped = [child for child in case if child.tag == "skipped"]
        how = "failed" if broken else "skipped" if skipped else "passed"
        why = "\n".join(child.text or child.get("message") or "" for child in broken or skipped)
        found.append(Case(case.get("name", "?"), how, why))
    return found


@pytest.fixture(scope="session")
def jobs(request: pytest.FixtureRequest) -> list[str]:
    """The jobs that the selected tests ask for, so that one alone takes the time of one."""
    asked = {item.callspec.params.get("job") for item in request.session.items if hasattr(item, "callspec")}
    return [name for name in inside.JOBS if name in asked]


@pytest.fixture(scope="session")
def ran(jobs: list[str], pytestconfig: pytest.Config) -> dict[str, list[Case]]:
    """Boots, lets the jobs run, and answers what each test in there did. A missing program ends the run with exit 8."""
    shutil.rmtree(RESULTS, ignore_errors=True)
    terminal = pytestconfig.pluginmanager.get_plugin("terminalreporter")
    began = time.monotonic()

    def say(line: str) -> None:
        if terminal is not None:
            terminal.write_line(f"vm {time.monotonic() - began:5.0f} s  {line}")
            terminal.flush()

    try:
        machine.run([sys.executable, "-m", "tests.vm.inside", *jobs], RESULTS, WITHIN_S, say)
    except machine.Missing as missing:
        pytest.exit(f"vm: {missing}", returncode=EXIT_PREREQUISITE)
    return {job: read(RESULTS / f"{job}.xml") for job in jobs}

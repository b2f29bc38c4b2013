"""On the distribution's own kernel, in a virtual machine: what this machine's kernel may lack. Minutes: `make vm`."""

import pytest

from tests.vm.conftest import Case
from tests.vm.inside import JOBS

pytestmark = [pytest.mark.vm, pytest.mark.timeout(1800)]

LEAST = {"wireguard": 35, "answers": 4, "failover": 3}
"""How many tests each job has at least: one that vanished must not pass for one that went well."""


@pytest.mark.parametrize("job", JOBS)
def test_the_job_passes_inside(ran: dict[str, list[Case]], job: str) -> None:
    cases = ran[job]
    assert len(cases) >= LEAST[job], f"{len(cases)} tests ran: {[case.name for case in cases]}"
    # One that is skipped in there counts as failed: to run all of them is what the virtual machine is for.
    assert {case.name: f"{case.how}: {case.why}" for case in cases if case.how != "passed"} == {}

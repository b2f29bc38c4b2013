"""What runs in the virtual machine: each job is a run of pytest whose record the outer test reads.

python -m tests.vm.inside JOB...
"""

import subprocess
import sys
from pathlib import Path

RESULTS = Path(__file__).parents[2] / "build" / "vm"
"""The one folder that outlives the virtual machine."""
JOBS: dict[str, tuple[str, ...]] = {
    "wireguard": ("tests/contract/kernel/test_wireguard.py", "tests/wiring/test_backend.py"),
    "answers": ("tests/contract/kernel/test_ipvs.py",),
    "failover": ("tests/vm/failover.py",),
}
"""Name to the tests that belong to it. `failover.py` is no name that pytest finds by itself: it is for in here only."""
TIMEOUT_S = "600"
"""Of one test: under emulation all is some ten times slower."""


def main(jobs: list[str]) -> int:
    """Run the jobs one after the other; how they went is in RESULTS/JOB.xml."""
    for job in jobs:
        print(f"job {job}", flush=True)
        command = [sys.executable, "-m", "pytest", "-v", "--no-header", "--tb=short", "-p", "no:cacheprovider"]
        record = f"--junitxml={RESULTS / f'{job}.xml'}"
        subprocess.run([*command, record, f"--timeout={TIMEOUT_S}", *JOBS[job]], check=False)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

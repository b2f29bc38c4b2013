"""Known vulnerabilities of the packages that `make setup` installs, by pip-audit.

    python deploy/setup/audit.py [OPTION OF PIP-AUDIT...]

It asks for each package of requirements.lock at its exact version. A machine that reaches no source of such data is no
reason to fail: then it says that nothing was checked, and why. Options are passed on, for a source of one's own:
`--vulnerability-service osv --osv-url URL`.

Exit codes: 0 none is known, or nobody could be asked; 1 a package has one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements.lock"
LIMIT_S = 60
NAMED = 5
"""How many packages that could not be checked are named."""


def ask(lock: Path, options: list[str]) -> tuple[dict[str, Any] | None, str]:
    """pip-audit's answer; without one None, and why."""
    command = [
        *(sys.executable, "-m", "pip_audit", "--requirement", str(lock), "--no-deps", "--disable-pip"),
        *("--progress-spinner", "off", "--format", "json", "--timeout", "10", *options),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=ROOT)
    except subprocess.TimeoutExpired:
        return None, f"no answer within {LIMIT_S} s"
    try:
        document = json.loads(done.stdout)
    except ValueError:
        lines = done.stderr.strip().splitlines() or [f"pip-audit ended with {done.returncode}"]
        return None, lines[-1]
    return document, ""


def vulnerable(packages: list[dict[str, Any]]) -> list[str]:
    """A line for each known vulnerability: package, version, names, and the versions without it."""
    lines = []
    for package in packages:
        for found in package.get("vulns", []):
            names = ", ".join([found["id"], *found["aliases"]])
            fixed = ", ".join(found["fix_versions"]) or "none yet"
            lines.append(f"{package['name']} {package['version']}: {names}; fixed in {fixed}")
    return lines


def main(options: list[str], lock: Path = LOCK) -> int:
    """Ask and say what came of it."""
    document, why = ask(lock, options)
    if document is None:
        print(f"audit: not checked: no source of vulnerabilities is reachable ({why})")
        return 0
    packages = document["dependencies"]
    skipped = [package["name"] for package in packages if "skip_reason" in package]
    checked = len(packages) - len(skipped)
    if not checked:
        print(f"audit: not checked: the source that is reachable knows none of the {len(packages)} packages")
        return 0
    lines = vulnerable(packages)
    for line in lines:
        print(f"audit: {line}", file=sys.stderr)
    if skipped:
        more = f" and {len(skipped) - NAMED} more" if len(skipped) > NAMED else ""
        print(f"audit: not known to the source, so not checked: {', '.join(skipped[:NAMED])}{more}")
    print(f"audit: {checked} packages checked, {len(lines) or 'no'} known vulnerabilities")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The look for known vulnerabilities: a real pip-audit, asking a source of this test's own."""

import importlib.util
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType

import pytest

from tests.style.sources import SETUP

REPOSITORY = Path(__file__).resolve().parents[2]
LOCK = "sound==1.0 --hash=sha256:" + "0" * 64 + "\nill==2.0 --hash=sha256:" + "0" * 64 + "\n"
REPORT = {
    "id": "OSV-1", "aliases": ["CVE-1"], "summary": "it falls over", "published": "2020-01-01T00:00:00Z",
    "affected": [{"package": {"name": "ill", "ecosystem": "PyPI"},
                  "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "2.1"}]}]}],
}  # fmt: skip


class Source(BaseHTTPRequestHandler):
    """Answers as OSV does; `known` are the packages that have something."""

    known: tuple[str, ...] = ()

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        found = [REPORT] if asked["package"]["name"] in self.known else []
        body = json.dumps({"vulns": found} if found else {}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def source() -> Iterator[list[str]]:
    """Options that name the source."""
    server = HTTPServer(("127.0.0.1", 0), Source)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield ["--vulnerability-service", "osv", "--osv-url", f"http://127.0.0.1:{server.server_port}/v1/query"]
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def audit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit_step", REPOSITORY / SETUP / "audit.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "lock"
    path.write_text(LOCK)
    return path


@pytest.mark.parametrize(("known", "code"), [(("ill",), 1), ((), 0)], ids=["one has", "none has"])
def test_a_known_vulnerability_fails_by_name(
    audit: ModuleType, source: list[str], lock: Path, capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch, known: tuple[str, ...], code: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(Source, "known", known)
    assert audit.main(source, lock) == code
    said = capfd.readouterr()
    assert ("ill 2.0: CVE-1, OSV-1; fixed in 2.1" in said.err) == bool(code), said
    assert f"2 packages checked, {code or 'no'} known" in said.out


def test_nobody_to_ask_is_said_and_is_no_failure(
    audit: ModuleType, lock: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert audit.main(["--vulnerability-service", "osv", "--osv-url", "http://127.0.0.1:9/v1/query"], lock) == 0
    assert "not checked: no source of vulnerabilities is reachable" in capfd.readouterr().out


def test_a_source_that_knows_none_of_them_has_checked_nothing(
    audit: ModuleType, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip-audit itself calls that "no known vulnerabilities found"."""
    packages = [{"name": name, "skip_reason": "not found"} for name in ("sound", "ill")]
    monkeypatch.setattr(audit, "ask", lambda lock, options: ({"dependencies": packages, "fixes": []}, ""))
    assert audit.main([]) == 0
    assert "not checked: the source that is reachable knows none of the 2 packages" in capfd.readouterr().out


def test_make_lint_does_it() -> None:
    assert "deploy/setup/audit.py" in (REPOSITORY / "Makefile").read_text()

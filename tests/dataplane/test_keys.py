"""Private keys: made once, kept tight, never shown."""

import base64
import os
import stat
from pathlib import Path

import pytest

from dataplane.errors import KeyFileError
from dataplane.keys import PrivateKey, ensure_private_key, parking_key, public_key_bytes, read_private_key


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "wireguard" / "private.key"


def test_the_public_key_is_what_wg_pubkey_says() -> None:
    assert PrivateKey(bytes(range(32))).public == "j0DFrbaPJWJK5bIU6nZ6bslNgp09e14a0bpvPiE4KF8="


def test_it_is_made_once_and_only_we_may_read_it(path: Path) -> None:
    first = ensure_private_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert ensure_private_key(path).public == first.public == read_private_key(path).public
    assert sorted(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o620])
def test_a_file_that_others_may_read_or_write_is_refused(path: Path, mode: int) -> None:
    ensure_private_key(path)
    path.chmod(mode)
    with pytest.raises(KeyFileError) as caught:
        ensure_private_key(path)
    assert str(path) in str(caught.value) and f"{mode:04o}" in str(caught.value) and "0600" in str(caught.value)


def test_no_error_and_no_text_shows_the_key(path: Path) -> None:
    key = ensure_private_key(path)
    secret = path.read_text().strip()
    path.write_text(secret + "x")
    with pytest.raises(KeyFileError) as caught:
        read_private_key(path)
    error: BaseException | None = caught.value
    shown = repr(key) + str(key)
    while error is not None:
        shown += repr(error)
        error = error.__cause__
    assert secret[:10] not in shown
    assert base64.b64decode(secret).hex()[:10] not in shown


def test_what_is_no_file_is_refused(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(KeyFileError, match="not a plain file"):
        ensure_private_key(path)


def test_a_link_is_not_followed(path: Path, tmp_path: Path) -> None:
    ensure_private_key(tmp_path / "other")
    path.parent.mkdir()
    path.symlink_to(tmp_path / "other")
    with pytest.raises(KeyFileError, match=str(path)):
        ensure_private_key(path)


def test_an_absent_file_is_named(path: Path) -> None:
    with pytest.raises(KeyFileError, match="No such file"):
        read_private_key(path)


def test_a_folder_that_can_t_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KeyFileError, match="can't be written"):
        ensure_private_key(tmp_path / "file" / "private.key")


def test_two_parking_keys_differ() -> None:
    assert parking_key() != parking_key()


@pytest.mark.parametrize("text", ["", "abc", "A" * 44, base64.b64encode(os.urandom(31)).decode()])
def test_a_bad_public_key_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="is not a WireGuard public key"):
        public_key_bytes(text)

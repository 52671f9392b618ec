"""Who finds the daemon, and with which token: `rftd token`, `rftd open`, the state folder of the user, TLS."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from synthetic.daemon.command_line import Rftd, Served

from rftd.daemon.cli.settings import Settings
from rftd.daemon.http.client.address import DEFAULT_URL, find_address
from rftd.daemon.trust.token_file import TokenFile
from rftd.daemon.trust.user_state import KnownDaemon, UserState

URL = "http://127.0.0.1:45678"


def environ(folder: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(folder)}


def recorded(folder: Path, url: str = URL, data: str = "/data", pid: int | None = None) -> KnownDaemon:
    daemon = KnownDaemon(url=url, folder=data, folder_id="id", pid=pid or os.getpid(), token="rftd_known")
    UserState(environ(folder)).record(daemon)
    return daemon


def token_for(folder: Path, **given: str) -> str:
    return find_address(Settings(**given), environ(folder)).token.reveal()


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working folder without a daemon."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")


def test_the_one_daemon_of_a_user_is_found_from_anywhere(tmp_path: Path) -> None:
    assert find_address(Settings(), environ(tmp_path)).url == DEFAULT_URL
    recorded(tmp_path)
    address = find_address(Settings(), environ(tmp_path))
    assert (address.url, address.token.reveal()) == (URL, "rftd_known")
    assert "rftd_known" not in repr(address)
    recorded(tmp_path, "http://127.0.0.1:45679", "/other")
    assert find_address(Settings(), environ(tmp_path)).url == DEFAULT_URL, "of two, neither is meant"
    recorded(tmp_path, DEFAULT_URL, "/usual")
    assert token_for(tmp_path) == "rftd_known"
    UserState(environ(tmp_path)).forget("/data")
    UserState(environ(tmp_path)).forget("/usual")
    assert find_address(Settings(), environ(tmp_path)).url == "http://127.0.0.1:45679"


def test_a_token_goes_to_no_other_url(tmp_path: Path) -> None:
    recorded(tmp_path)
    assert token_for(tmp_path, server=URL) == "rftd_known"
    for other in ("http://127.0.0.1:45679", "https://127.0.0.1:45678", f"{URL}/x", "http://evil.example:45678"):
        assert token_for(tmp_path, server=other) == "", other
    named = {**environ(tmp_path), "RFTD_TOKEN": "chosen"}
    assert find_address(Settings(server=URL), named).token.reveal() == "chosen"


def test_a_daemon_that_is_gone_is_not_asked(tmp_path: Path) -> None:
    recorded(tmp_path, pid=2**22 + 1)
    assert find_address(Settings(), environ(tmp_path)).url == DEFAULT_URL
    assert token_for(tmp_path, server=URL) == ""
    recorded(tmp_path, "http://127.0.0.1:45679", "/other")
    assert len(list((tmp_path / "rftd").iterdir())) == 1, "its file is removed when another starts"


def test_files_that_others_could_have_written_are_not_believed(tmp_path: Path) -> None:
    recorded(tmp_path)
    folder = tmp_path / "rftd"
    (file,) = folder.iterdir()
    for path, mode, sound in ((file, 0o640, 0o600), (folder, 0o750, 0o700)):
        path.chmod(mode)
        assert token_for(tmp_path, server=URL) == ""
        path.chmod(sound)
    assert token_for(tmp_path, server=URL) == "rftd_known"
    file.rename(tmp_path / "kept")
    file.symlink_to(tmp_path / "kept")
    assert token_for(tmp_path, server=URL) == ""
    folder.rename(tmp_path / "real")
    folder.symlink_to(tmp_path / "real")
    assert token_for(tmp_path, server=URL) == ""


def test_the_token_of_a_folder_is_for_the_address_in_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    token = TokenFile(data).ensure_owner()
    (data / "endpoint.json").write_text(json.dumps({"url": URL, "pid": os.getpid(), "folder": "id"}))
    assert token_for(tmp_path, data=str(data)) == token
    assert token_for(tmp_path, data=str(data), server="http://127.0.0.1:1") == ""
    TokenFile(data).owner_path.chmod(0o644)
    assert token_for(tmp_path, data=str(data)) == ""


def test_tokens_are_managed_without_a_daemon(rftd: Rftd, tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    made = rftd("token", "add", "ann", "--role", "submit", "--expires", "30d", "--queued", "3", "--data", data)
    assert made.status == 0, made.err
    token = made.out.strip()
    assert token.startswith("rftd_")
    listed = rftd("token", "ls", "--data", data, "--json")
    assert token not in listed.out
    (item,) = json.loads(listed.out)["items"]
    assert (item["name"], item["role"], item["queued"], item["streams"]) == ("ann", "submit", 3, 16)
    rotated = rftd("token", "rotate", "ann", "--data", data).out.strip()
    assert rotated != token
    assert rftd("token", "rm", "ann", "--data", data).status == 0
    for words, status in (
        (("rm", "ann"), 3),
        (("rotate", "ann"), 3),
        (("add", "Ann", "--role", "read"), 2),
        (("add", "owner", "--role", "read"), 2),
        (("add", "ann", "--role", "owner"), 2),
        (("add", "ann", "--role", "read", "--expires", "soon"), 2),
    ):
        assert rftd("token", *words, "--data", data).status == status, words
    nowhere = rftd("token", "ls")
    assert nowhere.status == 3
    assert "no data folder" in nowhere.err
    assert not Path(".rftd").exists()


def test_a_link_is_printed_and_is_one(rftd: Rftd, guarded: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RFTD_TOKEN", "right")
    opened = rftd("open", "--print", "--server", guarded.url)
    assert opened.status == 0
    assert opened.out.startswith(f"{guarded.url}/login?code=")
    monkeypatch.setenv("RFTD_TOKEN", "wrong")
    refused = rftd("open", "--print", "--server", guarded.url)
    assert refused.status == 2
    assert "RFTD-API-001" in refused.err


def test_nothing_is_served_off_loopback_in_the_clear(rftd: Rftd, tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    for words in (("--host", "0.0.0.0"), ("--host", "::"), ("--host", "0.0.0.0", "--unsafe-allow-unauthenticated")):
        refused = rftd("serve", "--port", "0", "--data", data, *words)
        assert refused.status == 2
        assert "--tls-terminated-elsewhere" in refused.err
    for words in (("--tls-cert", "x"), ("--tls-key", "x"), ("--tls-cert", "x", "--tls-key", "y"), ("--unsafe",)):
        assert rftd("serve", "--port", "0", "--data", data, *words).status == 2, words
    file = tmp_path / "rftd.yaml"
    file.write_text("unsafe_allow_unauthenticated: true\n")
    assert rftd("serve", "--port", "0", "--data", data, "--config", str(file)).status == 2
    assert not (tmp_path / "data" / "owner.token").exists()

"""A data folder that was named and from which no daemon serves: no other daemon is asked instead."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from synthetic.daemon.command_line import Rftd
from synthetic.daemon.gate import gate_at_work

from rftd.daemon.cli.settings import Settings
from rftd.daemon.http.client.address import DEFAULT_URL, find_daemon
from rftd.daemon.serve.data_folder import DataFolder, Endpoint
from rftd.ops.errors import UnreachableError


@pytest.mark.parametrize("endpoint", [None, "", "{", "[]", '{"port": 3}', "null"])
@pytest.mark.parametrize(("how", "default"), [("--data", False), ("RFTD_DATA", False), (".rftd", True)])
def test_only_where_no_folder_is_named_the_usual_port_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, endpoint: str | None, how: str, default: bool
) -> None:
    """At the usual port may be another folder's daemon: what was meant for this one went there."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / ".rftd" if default else tmp_path / "my runs"
    folder.mkdir()
    if endpoint is not None:
        (folder / "endpoint.json").write_text(endpoint)
    settings = Settings(data=str(folder) if how == "--data" else None)
    environ = {"RFTD_SERVER": "", "XDG_STATE_HOME": str(tmp_path / "state")}
    environ |= {how: str(folder)} if how == "RFTD_DATA" else {}
    if default:
        assert find_daemon(settings, environ) == DEFAULT_URL
        return
    with pytest.raises(UnreachableError) as raised:
        find_daemon(settings, environ)
    assert raised.value.what == f"no daemon serves from {folder}: none has written its address there"
    assert raised.value.fix == (
        f"start one with `rftd serve --data '{folder}'`, or name a daemon's address with --server"
    )


VERBS = pytest.mark.parametrize(
    "words",
    [
        ("submit", "exp.yaml"),
        ("ls",),
        ("get", "small"),
        ("why", "small"),
        ("watch", "small"),
        ("logs", "--daemon"),
        ("pause", "small"),
        ("steps", "small"),
    ],
)


@VERBS
def test_no_verb_asks_another_daemon_than_that_of_the_folder(
    rftd: Rftd, experiment_file: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.delenv("RFTD_SERVER")
    said = rftd(*words, "--data", "elsewhere")
    assert said.status == 4
    assert said.out == ""
    assert "no daemon serves from elsewhere" in said.err
    assert "rftd serve --data elsewhere" in said.err


def test_without_a_daemon_in_the_folder_a_check_is_one_of_here(
    rftd: Rftd, experiment_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RFTD_SERVER")
    checked = rftd("config", "check", str(experiment_file), "--data", "elsewhere")
    assert checked.status == 0, checked.err
    assert "checked here only: no daemon serves from elsewhere" in checked.out
    version = rftd("version", "--data", "elsewhere")
    assert version.status == 0
    assert "daemon: no daemon serves from elsewhere" in version.out
    doctor = rftd("doctor", "--data", "elsewhere")
    assert "no daemon serves from elsewhere" in doctor.out
    assert "RFTD-BUG" not in doctor.err


@VERBS
def test_the_daemon_of_another_folder_that_has_the_port_now_does_nothing(
    rftd: Rftd, experiment_file: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """endpoint.json outlives its daemon: the next one at that port was given what was meant for the first."""
    monkeypatch.delenv("RFTD_SERVER")
    with gate_at_work(folder="another") as url:
        announce_at("gone", url)
        said = rftd(*words, "--data", "gone")
    assert said.status == 4
    assert said.out == ""
    assert f"no daemon serves from gone: at the address that is written there, {url}, answers the daemon of" in said.err
    assert "rftd serve --data gone" in said.err
    assert f"--server {url}" in said.err


def test_checks_name_the_daemon_of_another_folder(
    rftd: Rftd, experiment_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RFTD_SERVER")
    with gate_at_work(folder="another") as url:
        announce_at("gone", url)
        checked = rftd("config", "check", str(experiment_file), "--data", "gone")
        version = rftd("version", "--data", "gone")
        doctor = rftd("doctor", "--data", "gone")
    assert checked.status == 0, checked.err
    assert "checked here only: no daemon serves from gone: at the address" in checked.out
    assert "daemon: no daemon serves from gone: at the address" in version.out
    assert "no daemon serves from gone: at the address" in doctor.out
    assert "another program listens" not in doctor.out


def announce_at(folder: str, url: str) -> None:
    """Leaves behind what the daemon of this folder wrote when it had this address."""
    made = DataFolder(Path(folder))
    made.prepare()
    made.announce(Endpoint(url=url, pid=os.getpid(), folder=made.id))


def test_the_id_of_a_folder_stays_and_a_copy_has_another(tmp_path: Path) -> None:
    first = DataFolder(tmp_path / "first")
    first.prepare()
    shutil.copytree(first.root, tmp_path / "copy")
    (tmp_path / "link").symlink_to(first.root)
    assert DataFolder(tmp_path / "first").id == DataFolder(tmp_path / "link").id == first.id
    assert DataFolder(tmp_path / "copy").id != first.id

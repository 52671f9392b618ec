"""A data folder that was named and from which no daemon serves: no other daemon is asked instead."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic.daemon.command_line import Rftd

from rftd.daemon.client.address import DEFAULT_URL, find_daemon
from rftd.daemon.settings import Settings
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
    environ = {"RFTD_SERVER": ""} | ({how: str(folder)} if how == "RFTD_DATA" else {})
    if default:
        assert find_daemon(settings, environ) == DEFAULT_URL
        return
    with pytest.raises(UnreachableError) as raised:
        find_daemon(settings, environ)
    assert raised.value.what == f"no daemon serves from {folder}: none has written its address there"
    assert raised.value.fix == (
        f"start one with `rftd serve --data '{folder}'`, or name a daemon's address with --server"
    )


@pytest.mark.parametrize(
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

"""The daemon's configuration file: the options of `rftd serve`, below the environment and the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from rftd.daemon.daemon_file import checked_postgres_url, take_daemon_file
from rftd.daemon.verbs.serve import command as serve
from rftd.ops.errors import ConfigError

SEEN: dict[str, Any] = {}


@click.command()
@click.option("--config", is_eager=True, expose_value=False, callback=take_daemon_file)
@click.option("--port", type=int, default=7070, envvar="RFTD_PORT")
@click.option("--worker-lost-after", "lost_after_s", default="15s")
def program(port: int, lost_after_s: str) -> None:
    SEEN.update(port=port, lost_after_s=lost_after_s)


def run(*arguments: str, environ: dict[str, str] | None = None) -> dict[str, Any]:
    SEEN.clear()
    result = CliRunner().invoke(program, arguments, env=environ or {}, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return dict(SEEN)


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "rftd.yaml"
    file.write_text("port: 1\nworker_lost_after: 3s\n")
    assert run("--config", str(file)) == {"port": 1, "lost_after_s": "3s"}
    assert run("--config", str(file), environ={"RFTD_PORT": "2"})["port"] == 2
    assert run("--config", str(file), "--port", "3", environ={"RFTD_PORT": "2"})["port"] == 3
    file.write_text("")
    assert run("--config", str(file))["port"] == 7070


@pytest.mark.parametrize(
    ("text", "what", "place"),
    [
        ("port: 1\nprot: 2\n", "did you mean 'port'", ":2"),
        ("port: [1]\n", "takes one value", ":1"),
        ("- port\n", "no mapping", ""),
        ("port: 'x\n", "cannot be read", ""),
        ("config: other.yaml\n", "no such option", ":1"),
    ],
)
def test_what_is_no_option_is_named_with_its_line(tmp_path: Path, text: str, what: str, place: str) -> None:
    file = tmp_path / "rftd.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        run("--config", str(file))
    assert what in f"{caught.value.what} {caught.value.fix}"
    assert (caught.value.where or "").startswith(f"{file}{place}")


def test_serve_takes_every_key_of_the_file(tmp_path: Path) -> None:
    names = {option.name for option in serve.params}
    assert {"kafka", "postgres", "workers", "host", "port"} <= names


def test_a_postgres_url_is_checked_and_never_repeated() -> None:
    assert checked_postgres_url("postgresql://u:hush@h/d") == "postgresql://u:hush@h/d"
    with pytest.raises(ConfigError) as caught:
        checked_postgres_url("mysql://u:hush@h/d")
    assert "hush" not in str(caught.value)

"""The daemon's configuration file: the options of `rftd serve`, below the environment and the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from rftd.daemon.cli.daemon_file import checked_postgres_url, take_daemon_file
from rftd.daemon.cli.verbs.serve import command as serve
from rftd.ops.errors import ConfigError

SEEN: dict[str, Any] = {}


@click.command()
@click.option("--config", is_eager=True, expose_value=False, callback=take_daemon_file)
@click.option("--port", type=int, default=7070, envvar="RFTD_PORT")
@click.option("--worker-lost-after", "lost_after_s", default="15s")
@click.option("--let-go", multiple=True)
def program(port: int, lost_after_s: str, let_go: tuple[str, ...]) -> None:
    SEEN.update(port=port, lost_after_s=lost_after_s, let_go=let_go)


def run(*arguments: str, environ: dict[str, str] | None = None) -> dict[str, Any]:
    SEEN.clear()
    result = CliRunner().invoke(program, arguments, env=environ or {}, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return dict(SEEN)


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "rftd.yaml"
    file.write_text("port: 1\nworker_lost_after: 3s\n")
    assert run("--config", str(file)) == {"port": 1, "lost_after_s": "3s", "let_go": ()}
    assert run("--config", str(file), environ={"RFTD_PORT": "2"})["port"] == 2
    assert run("--config", str(file), "--port", "3", environ={"RFTD_PORT": "2"})["port"] == 3
    file.write_text("")
    assert run("--config", str(file))["port"] == 7070


@pytest.mark.parametrize(
    ("text", "what", "place"),
    [
        ("port: 1\nprot: 2\n", "did you mean 'port'", ":2"),
        ("port: [1]\n", "takes one value", ":1"),
        ("- port\n", "not a mapping", ""),
        ("port: 'x\n", "cannot be read", ""),
        ("config: other.yaml\n", "no such option", ":1"),
        ("port: 1\nworker_lost_after: 3s\nport: 2\n", "stands there twice", ":3"),
        ("port:\n", "takes one value", ":1"),
        ("port: ~\n", "takes one value", ":1"),
        ("let_go: [[a]]\n", "takes one value", ":1"),
        ("worker_lost_after: [3s]\n", "takes one value", ":1"),
        ("? [port]\n: 1\n", "no such option", ":1"),
        ("<<: {port: 1}\n", "no such option", ":1"),
        ("port: 1\n---\nport: 2\n", "cannot be read", ""),
        ("port: *unknown\n", "cannot be read", ""),
        ("[" * 1000, "cannot be read", ""),
    ],
)
def test_what_is_no_option_is_named_with_its_line(tmp_path: Path, text: str, what: str, place: str) -> None:
    file = tmp_path / "rftd.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        run("--config", str(file))
    assert what in f"{caught.value.what} {caught.value.fix}"
    assert (caught.value.where or "").startswith(f"{file}{place}")


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("port: 010\n", "port", 10),  # YAML 1.1 would make 8 of it, and 90 of the next
        ("worker_lost_after: 1:30\n", "lost_after_s", "1:30"),
        ("worker_lost_after: 2020-01-01\n", "lost_after_s", "2020-01-01"),
        ("worker_lost_after: on\n", "lost_after_s", "on"),
        ("worker_lost_after: 'ein halber \u00c4on'\n", "lost_after_s", "ein halber \u00c4on"),
        ("worker_lost_after: ''\n", "lost_after_s", ""),
        ("let_go: one\n", "let_go", ("one",)),
        ("let_go: [one, two]\n", "let_go", ("one", "two")),
        ("let_go:\n- one\n- 010\n", "let_go", ("one", "010")),
        ("let_go: []\n", "let_go", ()),
    ],
)
def test_a_value_is_read_as_the_command_line_would_read_it(
    tmp_path: Path, text: str, field: str, value: object
) -> None:
    file = tmp_path / "rftd.yaml"
    file.write_text(text, encoding="utf-8")
    assert run("--config", str(file))[field] == value


def test_a_file_in_another_encoding_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "rftd.yaml"
    file.write_bytes(b"port: \xe9\n")
    with pytest.raises(ConfigError, match="cannot be read"):
        run("--config", str(file))


@pytest.fixture
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite's own setting would win over the file."""
    monkeypatch.delenv("RFTD_DISK_RESERVE", raising=False)


@pytest.mark.usefixtures("plain_environment")
def test_serve_takes_each_of_its_options_from_the_file(tmp_path: Path) -> None:
    values = {
        "host": "127.0.0.2",
        "port": "7171",
        "postgres": "postgresql://db/rftd",
        "workers": "external",
        "roles": "explorer",
        "slots": "3",
        "payloads": "until-ended",
        "log_format": "json",
        "log_level": "error",
        "worker_lost_after": "1m",
        "disk_reserve": "2GiB",
        "disk_budget": "1TB",
        "accept_loss": "[one, two]",
        "take_over": "[three]",
    }
    file = tmp_path / "rftd.yaml"
    file.write_text("".join(f"{key}: {value}\n" for key, value in values.items()))
    taken = serve.make_context("serve", ["--config", str(file)]).params
    assert {key: taken[key] for key in ("host", "port", "postgres", "workers", "roles", "slots", "payloads")} == {
        **{key: values[key] for key in ("host", "postgres", "roles", "payloads")},
        "workers": {"explorer": "external", "trainer": "external"},
        "port": 7171,
        "slots": 3,
    }
    assert (taken["log_format"], taken["log_level"]) == ("json", "error")
    assert taken["lost_after_s"] == 60.0
    assert taken["disk_reserve"] == 2 * 1024**3
    assert taken["disk_budget"] == 10**12
    assert taken["accept_loss"] == ("one", "two")
    assert taken["take_over"] == ("three",)


@pytest.mark.parametrize(
    "line", ["port: 70000", "slots: 0", "slots: 65", "payloads: never", "disk_reserve: some", "worker_lost_after: soon"]
)
@pytest.mark.usefixtures("plain_environment")
def test_a_value_that_serve_cannot_take_is_its_usage_error(tmp_path: Path, line: str) -> None:
    file = tmp_path / "rftd.yaml"
    file.write_text(line)
    with pytest.raises(click.BadParameter):
        serve.make_context("serve", ["--config", str(file)])


def test_a_postgres_url_is_checked_and_never_repeated() -> None:
    assert checked_postgres_url("postgresql://u:hush@h/d") == "postgresql://u:hush@h/d"
    with pytest.raises(ConfigError) as caught:
        checked_postgres_url("mysql://u:hush@h/d")
    assert "hush" not in str(caught.value)

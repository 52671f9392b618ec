"""The units of ops/systemd: systemd takes them, and their command lines and variables exist."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from rftd.daemon.cli.cli import rftd

UNITS = sorted((Path(__file__).parents[2] / "ops" / "systemd").iterdir())
PROGRAM = "/opt/rftd/bin/rftd"


def service(path: Path) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(path)
    return parser["Service"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    names = [path.name.replace("@", "@explorer") for path in UNITS]
    for path, name in zip(UNITS, names, strict=True):
        # Whether the program is there is looked at, too.
        (tmp_path / name).write_text(path.read_text().replace(PROGRAM, "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *(str(tmp_path / name) for name in names)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_runs_a_command_line_that_exists(path: Path) -> None:
    program, *words = service(path)["ExecStart"].replace("%i", "trainer").replace("%S", "/var/lib").split()
    assert program == PROGRAM
    words = [word for word in words if not word.startswith("$")]
    if words[0] == "worker":  # its log is a variable
        words += ["--kafka", "broker:9092"]
    context = click.Context(rftd, info_name="rftd")
    command: click.Command | None = rftd
    while isinstance(command, click.Group):
        context = click.Context(command, parent=context)
        command = command.get_command(context, words.pop(0))
    assert command is not None
    command.make_context("rftd", words, parent=context)


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_is_closed_to_others(path: Path) -> None:
    unit = service(path)
    assert (unit["UMask"], unit["StateDirectoryMode"], unit["RuntimeDirectoryMode"]) == ("0077", "0700", "0700")
    assert (unit["NoNewPrivileges"], unit["ProtectSystem"], unit["CapabilityBoundingSet"]) == ("yes", "strict", "")
    assert unit["User"] != "root"
    # The socket is below it, and no one else's folder.
    assert f"XDG_RUNTIME_DIR=%t/{unit['RuntimeDirectory']}" in unit["Environment"]
    assert not re.search(r"^Environment=.*(TOKEN|PASSWORD|KEY)=", path.read_text(), re.MULTILINE)


def test_workers_outlive_a_daemon_that_crashed() -> None:
    unit = service(UNITS[[path.name for path in UNITS].index("rftd.service")])
    assert (unit["KillMode"], unit["Restart"], unit["RuntimeDirectoryPreserve"]) == ("process", "on-failure", "restart")

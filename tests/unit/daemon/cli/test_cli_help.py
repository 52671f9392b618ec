"""The help of each verb, as files: a changed option shows in review. RFTD_UPDATE_GOLDEN=1 writes them anew."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click
import pytest
from synthetic.daemon.command_line import Rftd

from rftd.daemon.cli.cli import HIDDEN, VERBS
from rftd.daemon.cli.cli import rftd as group
from rftd.daemon.cli.verbs.explain import codes as known_codes

GOLDEN = Path(__file__).parents[3] / "golden" / "cli"
OURS = [name for name in VERBS if name not in {*HIDDEN, "serve", "demo", "verify", "config"}]
"""Verbs whose help is kept here; the others belong to the suites of their parts."""


def check(name: str, text: str) -> None:
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("RFTD_UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text(), f"{path} differs: look at it, then RFTD_UPDATE_GOLDEN=1"


def test_the_table_of_verbs(rftd: Rftd) -> None:
    said = rftd("--help")
    assert said.status == 0
    assert said.err == ""
    check("rftd", said.out)


@pytest.mark.parametrize("verb", OURS)
def test_help_of_each_verb(rftd: Rftd, verb: str) -> None:
    said = rftd(verb, "--help")
    assert said.status == 0
    assert said.err == ""
    command = group.get_command(click.Context(group), verb)
    parts = [said.out]
    for sub in sorted(command.commands) if isinstance(command, click.Group) else ():
        parts.append(rftd(verb, sub, "--help").out)
    check(verb, "\n".join(parts))


def test_explain_knows_every_code_with_its_fix_and_completion_every_shell(rftd: Rftd) -> None:
    codes = [line.split()[0] for line in rftd("explain").out.splitlines()]
    assert len(codes) == len(set(codes)) > 20
    for code in codes:
        said = rftd("explain", code)
        assert said.status == 0
        assert "exit status" in said.out
    told = {each["code"]: each for each in json.loads(rftd("explain", "--json").out)}
    kinds = known_codes()
    assert told.keys() == kinds.keys() == set(codes)
    for code, kind in kinds.items():
        assert "remedy" in vars(kind), f"{code} has the fix of another code"
        assert told[code]["fix"] == kind.remedy
        assert f"\nfix: {kind.remedy}\n" in rftd("explain", code).out
    assert json.loads(rftd("explain", "cfg-004", "--json").out)["exit_status"] == 2
    assert "report" in json.loads(rftd("explain", "bug", "--json").out)["fix"]
    assert "\nfix: Send the report" in rftd("explain", "RFTD-BUG").out
    for shell in ("bash", "zsh", "fish"):
        assert "_RFTD_COMPLETE" in rftd("completion", shell).out


def test_names_are_completed_from_the_daemon(rftd: Rftd, monkeypatch: pytest.MonkeyPatch) -> None:
    from rftd.daemon.cli.verbs import arguments
    from rftd.daemon.cli.verbs.arguments import complete

    monkeypatch.setattr(arguments, "_TIMEOUT_S", 30.0)  # a busy machine is no daemon that is away
    context = click.Context(group)
    argument = click.Argument(["name"])
    assert [item.value for item in complete(context, argument, "sm")] == ["small"]
    monkeypatch.setenv("RFTD_SERVER", "http://127.0.0.1:1")
    assert complete(context, argument, "") == []

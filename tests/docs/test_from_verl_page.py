"""The page about veRL: its commands work on its files, and the file and the report are as it shows them."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from synthetic.docs.pages import ROOT, blocks_of
from synthetic.docs.world import World

from rftd.daemon.config.verl.draft import Outcome
from rftd.daemon.config.verl.importing import import_script

PAGE = ROOT / "docs" / "from-verl.md"


def test_the_commands_work_without_a_daemon(tmp_path: Path) -> None:
    world = World(tmp_path)
    for block in blocks_of(PAGE, "bash"):
        for line in block.text.splitlines():
            said = world.run(line)
            assert "unknown" not in said, line
    assert "save_interval: 100" in (tmp_path / "imported.yaml").read_text()
    assert "mapped" in (tmp_path / "imported.txt").read_text()


def test_the_file_that_is_shown_is_the_one_that_is_written() -> None:
    (script,) = blocks_of(PAGE, "sh")
    (shown,) = blocks_of(PAGE, "yaml")
    written = import_script(script.text, "run.sh").text.splitlines()
    left = iter(written)
    missing = [line for line in shown.text.splitlines() if line not in left]
    assert missing == []


def test_every_outcome_is_explained() -> None:

    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    assert [outcome for outcome in get_args(Outcome) if not any(row.startswith(f"| {outcome} |") for row in rows)] == []

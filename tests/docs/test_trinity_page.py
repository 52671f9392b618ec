"""The page about Trinity-RFT: what works is shown by a test or an example that is there, what is refused is refused."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
from synthetic.daemon.experiment_files import TEXT
from synthetic.docs.pages import ROOT

from rftd.daemon.config.issue import ConfigErrors
from rftd.daemon.config.loading import load_text

PAGE = ROOT / "docs" / "trinity.md"
STATES = ("works", "partly", "refused", "not here")
TASKSET = "buffer.explorer_input.taskset"
TINKER = "model.tinker={enable: true, base_model: org/m}"
ACTOR = "trainer.trainer_config.actor_rollout_ref"
REFUSED = {
    "veRL's tree: `external_lib`, `override_config`, `resume_from_path`, hdfs": [
        [f"{ACTOR}.model.external_lib=a"],
        [f"{ACTOR}.model.override_config={{a: 1}}"],
        ["trainer.trainer_config.trainer.resume_from_path=/a"],
        ["trainer.trainer_config.trainer.default_hdfs_dir=/a"],
    ],
    **{
        row: [[f"{TASKSET}.default_workflow_type={name}"] for name in re.findall(r"`(\w+)`", row)]
        for row in re.findall(r"^\| (`\w+_workflow.*?) \| refused", PAGE.read_text(), re.MULTILINE)
    },
    "ppo, on_policy_distill": [[TINKER, "algorithm.algorithm_type=ppo"]],
    'entropy ("not consistent" there)': [
        [TINKER, "algorithm.entropy_loss_fn=default", "algorithm.entropy_loss_fn_args={entropy_coef: 0.1}"]
    ],
}
"""The settings that ask for what a row says is refused."""


class Row(NamedTuple):
    item: str
    state: str
    missing: str
    shown_by: str


def rows() -> list[Row]:
    """The rows of the tables, without their heads and the table of states."""
    lines = PAGE.read_text().partition("\n## ")[2].splitlines()
    cells = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines if line.startswith("| ")]
    return [Row(*row) for row in cells if row[0] != "item"]


def test_each_row_has_a_state_and_says_what_is_missing() -> None:
    for row in rows():
        assert row.state in STATES, row
        assert row.state == "works" or row.missing, row
    assert Counter(row.state for row in rows())["works"] >= 78


@pytest.mark.parametrize("row", [row for row in rows() if row.state in ("works", "partly") and row.shown_by], ids=str)
def test_what_works_is_shown_by_what_is_there(row: Row) -> None:
    file, *tests = re.findall(r"`([^`]+)`", row.shown_by)
    path: Path = ROOT / file
    assert path.is_file(), file
    for test in tests:
        assert re.search(rf"^(async )?def {test}\(", path.read_text(), re.MULTILINE), test


def test_what_works_names_who_shows_it() -> None:
    assert [row.item for row in rows() if row.state == "works" and not row.shown_by] == []


@pytest.mark.parametrize("item", [row.item for row in rows() if row.state == "refused"])
def test_what_is_refused_is_refused(item: str) -> None:
    load_text(TEXT, "f.yaml", environ={})
    for overrides in REFUSED[item]:
        with pytest.raises(ConfigErrors) as refused:
            load_text(TEXT, "f.yaml", overrides=overrides, environ={})
        assert all(error.fix for error in refused.value.errors), overrides

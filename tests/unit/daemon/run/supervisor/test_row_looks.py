"""Right answers that no reward of texts could ever find right: refused when an experiment is handed in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rftd.daemon.run.supervisor.row_looks import check_tasks
from rftd.ops.errors import DataError
from rftd.streams.spec.sections import Format
from rftd.streams.spec.spec import TasksetSpec
from rftd.workers.datasets.taskset import Taskset


def check(path: Path, rows: list[dict[str, Any]], *, key: str = "a", **fields: Any) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    form = Format(prompt_key="q", response_key=key, reward_fn_key="by", workflow_key="with")
    with Taskset.open(TasksetSpec(name="t", path=str(path), format=form, **fields)) as taskset:
        check_tasks(taskset)


def test_a_mapping_or_a_list_is_refused_wherever_it_is(tmp_path: Path) -> None:
    rows = [{"q": "q", "a": "1"}] * 40
    check(tmp_path / "rows.jsonl", rows)
    mapped = {"q": "q", "a": {"style": "rule", "ground_truth": "1"}}
    with pytest.raises(
        DataError, match=r"(?s)mapping under 'a', where math_reward takes a text.*a.ground_truth.*row 20"
    ):
        check(tmp_path / "rows.jsonl", [*rows[:20], *[mapped] * 20])
    with pytest.raises(DataError, match="list under 'a', where exact_match_reward takes a text") as caught:
        check(tmp_path / "rows.jsonl", [{"q": "q", "a": ["1"]}], reward="exact_match_reward")
    assert caught.value.field == "a"
    check(tmp_path / "rows.jsonl", [mapped], key="a.ground_truth")


def test_one_mapping_among_thousands_of_texts_is_found(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"q": "q", "a": "1"}] * 9000
    rows[8765] = {"q": "q", "a": {"ground_truth": "1"}}
    with pytest.raises(DataError, match=r"(?s)mapping under 'a'.*row 8765"):
        check(tmp_path / "rows.jsonl", rows)


def test_a_reward_that_takes_objects_gets_them(tmp_path: Path) -> None:
    asked = {"q": "q", "a": {"target": 3, "numbers": [1, 2]}}
    check(tmp_path / "rows.jsonl", [asked], reward="countdown_reward")
    check(tmp_path / "rows.jsonl", [{**asked, "by": "countdown_reward"}])
    check(tmp_path / "rows.jsonl", [asked], reward="somebody.elses")
    with pytest.raises(DataError, match="where math_reward takes a text"):
        check(tmp_path / "rows.jsonl", [{**asked, "by": "math_reward"}], reward="countdown_reward")


@pytest.mark.parametrize(
    ("column", "kind", "near"),
    [("by", "reward", "math_reward"), ("with", "workflow", "math_workflow")],
)
def test_a_row_that_names_what_nobody_has_is_refused(tmp_path: Path, column: str, kind: str, near: str) -> None:
    """Its worker would find out for each rollout of the row."""
    rows: list[dict[str, Any]] = [{"q": "q", "a": "1", column: near}] * 40
    check(tmp_path / "rows.jsonl", rows)
    rows[20] = {"q": "q", "a": "1", column: near.replace("math", "mth")}
    words = rf"(?s)own under '{column}': unknown {kind} 'mth.*rows\.jsonl:21.*did you mean '{near}'"
    with pytest.raises(DataError, match=words) as caught:
        check(tmp_path / "rows.jsonl", rows)
    assert caught.value.field == column

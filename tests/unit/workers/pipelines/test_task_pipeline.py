"""The task pipeline: operators, priorities, order and lineage of rows."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rftd.ops.errors import DataError, PipelineError, RftdError
from rftd.streams.spec.spec import TasksetSpec
from rftd.streams.spec.stage_parts import OperatorSpec
from rftd.streams.spec.task_pipeline import TaskPipelineSpec
from rftd.workers.pipelines import task_pipeline
from rftd.workers.pipelines.priority import WEIGHTS, priorities
from rftd.workers.pipelines.registry import TASK_OPERATORS
from rftd.workers.pipelines.task_operator import PipelineRow
from rftd.workers.pipelines.task_operators import Rows
from rftd.workers.pipelines.task_pipeline import MadeRows, TaskPipelineJob, made_rows


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    return str(path)


def run(inputs: Sequence[str], *operators: OperatorSpec, **settings: Any) -> MadeRows:
    pipeline = TaskPipelineSpec(inputs=tuple(inputs), operators=operators, target_fields=("question",), **settings)
    return made_rows(TaskPipelineJob(pipeline=pipeline, inputs=TasksetSpec(name="rows", path=""), settings="s"))


def texts(made: MadeRows) -> list[str]:
    return [row["question"] for row in made.rows]


@pytest.mark.parametrize(
    ("name", "args", "kept"),
    [
        ("text_length_filter", {"min_len": 3, "max_len": 9}, ["one two", "one two", "ONE two"]),
        ("words_num_filter", {"min_num": 3}, ["one two three", "aaaaaaaaaaaa aaaaaaaaaaaa a"]),
        ("alphanumeric_filter", {"min_ratio": 0.9}, ["aaaaaaaaaaaa aaaaaaaaaaaa a"]),
        (
            "character_repetition_filter",
            {"rep_len": 3},
            ["one two", "one two", "ONE two", "?!", "one two three"],
        ),
        (
            "document_deduplicator",
            {},
            ["one two", "ONE two", "?!", "one two three", "aaaaaaaaaaaa aaaaaaaaaaaa a"],
        ),
        (
            "document_deduplicator",
            {"lowercase": True, "ignore_non_character": True},
            ["one two", "?!", "one two three", "aaaaaaaaaaaa aaaaaaaaaaaa a"],
        ),
        ("specified_numeric_field_filter", {"field_key": "level", "min_value": 2, "max_value": 3}, ["ONE two", "?!"]),
    ],
)
def test_a_filter_keeps_the_rows_within_its_bounds(
    tmp_path: Path, name: str, args: dict[str, Any], kept: list[str]
) -> None:
    rows = ["one two", "one two", "ONE two", "?!", "one two three", "aaaaaaaaaaaa aaaaaaaaaaaa a"]
    path = write(tmp_path / "in.jsonl", [{"question": text, "level": level} for level, text in enumerate(rows)])
    made = run([path], OperatorSpec(name=name, args=args))
    assert texts(made) == kept
    assert made.made.operators[0].rows == made.made.rows == len(kept)


def test_rows_are_ordered_by_priority_and_the_first_are_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "in.jsonl", [{"question": f"q{level}", "level": level / 10} for level in (3, 9, 1, 5, 1)])
    score = OperatorSpec(name="field_score_mapper", args={"field_key": "level", "stats_key": "difficulty_score"})
    assert texts(run([path], score)) == ["q1", "q1", "q3", "q5", "q9"]  # the guide's weight is negative: easy first
    hard = run([path], score, priority_weights={"difficulty": 2.0}, top_k=2)
    assert texts(hard) == ["q9", "q5"]
    assert hard.rows[0]["task_pipeline"] == {"input": 0, "row": 1, "stats": {"difficulty_score": 0.9}, "priority": 1.8}


def test_rows_without_scores_keep_the_order_of_the_inputs(tmp_path: Path) -> None:
    first = write(tmp_path / "a.jsonl", [{"question": "b"}, {"question": "a"}])
    second = write(tmp_path / "b.jsonl", [{"question": "0"}])
    made = run([first, second], OperatorSpec(name="text_length_filter", args={"min_len": 1}), top_k=3)
    assert texts(made) == ["b", "a", "0"]
    assert [row["task_pipeline"]["input"] for row in made.rows] == [0, 0, 1]
    assert [rows.rows for rows in made.made.inputs] == [2, 1]
    assert made.made.inputs[1].digest == hashlib.sha256(Path(second).read_bytes()).hexdigest()


def test_priorities_are_the_weighted_scores_of_the_guide() -> None:
    figures = [
        {"llm_difficulty_score": 0.2, "llm_quality_score": 0.9, "consumed_cnt": 2.0},
        {"perplexity": 10.0, "alnum_ratio": 0.5, "char_rep_ratio": 0.1},
        {"perplexity": 30.0},
    ]
    assert priorities(figures, WEIGHTS) == pytest.approx(
        [
            -0.7 * 0.2 + 0.9 - 0.5 * 2,
            -0.7 * 0.0 + (0.5 + 0.9) / 2,
            -0.7 * 1.0 + 0.5,
        ]
    )
    assert priorities([{"text_len": 3.0}], WEIGHTS) is None
    assert priorities(figures, {"diversity": 1.0}) is None


def test_processes_change_no_row_of_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_pipeline, "_PART_ROWS", 4)
    path = write(tmp_path / "in.jsonl", [{"question": "x" * (number % 7)} for number in range(20)])
    lengths = OperatorSpec(name="text_length_filter", args={"min_len": 2})
    assert run([path], lengths, num_process=2) == run([path], lengths, num_process=1)


def test_a_digest_of_an_operator_depends_on_its_arguments(tmp_path: Path) -> None:
    path = write(tmp_path / "in.jsonl", [{"question": "long enough"}])
    digests = {
        run([path], OperatorSpec(name="text_length_filter", args={"min_len": least})).made.operators[0].digest
        for least in (1, 1, 2)
    }
    assert len(digests) == 2


class Doubling:
    """Returns each row twice."""

    def process(self, rows: Rows) -> tuple[list[PipelineRow], dict[str, float]]:
        return [*rows, *rows], {}


class Immeasurable:
    """Scores each row with a figure that is no number."""

    def process(self, rows: Rows) -> tuple[list[PipelineRow], dict[str, float]]:
        return [msgspec.structs.replace(row, stats={"quality_score": float("nan")}) for row in rows], {}


class Raising:
    """Fails for every row."""

    def process(self, rows: Rows) -> tuple[list[PipelineRow], dict[str, float]]:
        raise SystemExit(len(rows))


@pytest.mark.parametrize(
    ("kind", "says"), [("Doubling", "rows twice"), ("Immeasurable", "row 0 is nan"), ("Raising", "raised SystemExit")]
)
def test_an_operator_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, says: str) -> None:
    monkeypatch.setitem(TASK_OPERATORS._table, "theirs", f"{__name__}:{kind}")
    path = write(tmp_path / "in.jsonl", [{"question": "a"}])
    with pytest.raises(PipelineError, match=says):
        run([path], OperatorSpec(name="theirs"))


@pytest.mark.parametrize(
    ("rows", "operator", "says"),
    [
        ([{"answer": "1"}], OperatorSpec(name="text_length_filter"), "no column 'question'"),
        ([{"question": "a"}], OperatorSpec(name="text_length_filter"), "leaves no row"),
        (
            [{"question": "a", "level": "high"}],
            OperatorSpec(name="specified_numeric_field_filter", args={"field_key": "level"}),
            "'high' in column 'level', which is no number",
        ),
    ],
)
def test_rows_that_cannot_be_judged_are_named(
    tmp_path: Path, rows: list[dict[str, Any]], operator: OperatorSpec, says: str
) -> None:
    with pytest.raises(DataError, match=says) as caught:
        run([write(tmp_path / "in.jsonl", rows)], operator)
    assert isinstance(caught.value, RftdError)

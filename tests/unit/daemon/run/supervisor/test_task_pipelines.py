"""Task pipelines at submission: rows made once, in a process, and recorded with the experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from rftd.daemon.config.loading import check_config
from rftd.daemon.run.supervisor.kept_tables import KeptTables
from rftd.daemon.run.supervisor.task_pipelines import TaskPipelines, check_made, names_task_pipelines
from rftd.daemon.trust.allowances import Allowances
from rftd.daemon.trust.asker import OWNER
from rftd.daemon.trust.judge import SubmissionJudge
from rftd.ops.errors import ConfigError, DataError
from rftd.workers.devices.host import ANY_HOST


def config_of(folder: Path, **pipeline: Any) -> dict[str, Any]:
    rows = [{"question": "abcdef"[:size], "answer": str(size), "level": 10 - size} for size in (1, 4, 4, 6)]
    (folder / "in.jsonl").write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    operators = [
        {"name": "text_length_filter", "args": {"min_len": 2}},
        {"name": "document_deduplicator"},
        {"name": "field_score_mapper", "args": {"field_key": "level", "stats_key": "difficulty_score"}},
    ]
    section = {"operators": operators, "inputs": [str(folder / "in.jsonl")], "target_fields": ["question"]}
    return {
        "name": "piped",
        "checkpoint_root_dir": str(folder / "root"),
        "algorithm": {"algorithm_type": "grpo", "repeat_times": 2, "optimizer": {"lr": 1e-6}},
        "model": {"model_path": "/model", "max_prompt_tokens": 8, "max_response_tokens": 8},
        "data_processor": {"task_pipeline": section | pipeline},
        "buffer": {"batch_size": 1, "total_steps": 2, "explorer_input": {"taskset": {}}},
        "synchronizer": {"sync_method": "checkpoint"},
    }


def made(config: dict[str, Any], folder: Path) -> tuple[dict[str, Any], TaskPipelines]:
    pipelines = TaskPipelines(SubmissionJudge(OWNER, Allowances()), KeptTables(None))
    return pipelines.read(config, folder / "root", ANY_HOST), pipelines


def test_rows_are_made_once_and_recorded_with_inputs_and_operators(tmp_path: Path) -> None:
    config = config_of(tmp_path, output={"path": str(tmp_path / "copy.jsonl")})
    changed, pipelines = made(config, tmp_path)
    assert names_task_pipelines(config)
    assert not names_task_pipelines(changed)
    stage = check_config(changed, host=ANY_HOST).stages[0]
    assert stage.taskset is not None
    rows = [msgspec.json.decode(line) for line in Path(stage.taskset.path).read_bytes().splitlines()]
    assert [(row["answer"], row["task_pipeline"]["row"]) for row in rows] == [("6", 3), ("4", 1)]
    assert stage.task_pipeline is not None
    record = stage.task_pipeline.made
    assert record is not None
    assert [(run.name, run.rows) for run in record.operators] == [
        ("text_length_filter", 3),
        ("document_deduplicator", 2),
        ("field_score_mapper", 2),
    ]
    assert record.inputs[0].rows == 4
    assert (tmp_path / "copy.jsonl").read_bytes() == Path(stage.taskset.path).read_bytes()
    assert pipelines.notes[0].startswith("data_processor.task_pipeline: 2 of 4 rows, kept in ")
    check_made(changed)
    with pytest.raises(ConfigError, match="is not run for a fork"):
        check_made(config)
    # Repeated after a crash, the submission makes the same file, and finds the copy as its own.
    again, _ = made(config, tmp_path)
    assert again == changed
    (tmp_path / "copy.jsonl").write_text("another\n")
    with pytest.raises(ConfigError, match="exists"):
        made(config, tmp_path)


def test_a_failed_operator_is_the_submissions_error(tmp_path: Path) -> None:
    config = config_of(tmp_path, target_fields=["text"])
    with pytest.raises(DataError, match="no column 'text'") as caught:
        made(config, tmp_path)
    assert caught.value.field == "data_processor.task_pipeline"
    assert not list((tmp_path / "root").rglob("*.jsonl"))


def test_a_stage_of_its_own_pipeline_gets_a_taskset_of_its_own(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    pipeline = config.pop("data_processor")
    config["buffer"]["explorer_input"]["taskset"] = {"path": str(tmp_path / "in.jsonl")}
    config["stages"] = [{"stage_name": "plain"}, {"stage_name": "piped", "data_processor": pipeline}]
    changed, _ = made(config, tmp_path)
    plain, piped = check_config(changed, host=ANY_HOST).stages
    assert (plain.task_pipeline, piped.task_pipeline is not None) == (None, True)
    assert plain.taskset is not None
    assert piped.taskset is not None
    assert plain.taskset.path == str(tmp_path / "in.jsonl")
    assert piped.taskset.path != plain.taskset.path

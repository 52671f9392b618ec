"""`sample_strategy: mix`: an expert's rows beside the experiences of each batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import datasets
import pytest
from synthetic.worlds.row_files import WRITERS

from rftd.daemon.config.effective.experiment import effective_config
from rftd.daemon.config.loading import Submission
from rftd.daemon.run.supervisor.preflight import preflight
from rftd.ops.errors import ConfigError
from rftd.streams.spec.spec import ExperimentSpec

Load = Callable[..., Submission]
Errors = Callable[..., list[str]]
MIX = "algorithm.sample_strategy=mix"
BUFFER = "buffer.trainer_input.auxiliary_buffers={sft_dataset: {path: /expert.jsonl, limit_rows: 9}}"


def test_half_of_a_batch_is_an_experts_unless_a_share_is_given(load: Load) -> None:
    stage = load(overrides=[MIX, BUFFER]).spec.stages[0]
    assert (stage.train_batch_size, stage.expert_rows, stage.experiences_per_step) == (8, 4, 4)
    assert stage.dataset is not None
    assert (stage.dataset.name, stage.dataset.path, stage.dataset.limit_rows) == ("sft_dataset", "/expert.jsonl", 9)
    some = load(overrides=[MIX, BUFFER, "algorithm.sample_strategy_args={expert_data_ratio: 0.3}"]).spec.stages[0]
    assert (some.expert_rows, some.experiences_per_step) == (3, 5)
    named = "algorithm.sample_strategy_args={sft_dataset_name: mine}"
    other = load(overrides=[MIX, BUFFER.replace("sft_dataset:", "mine:"), named]).spec.stages[0]
    assert other.dataset is not None
    assert other.dataset.name == "mine"


def test_without_mix_there_are_no_rows_and_an_unused_buffer_is_mentioned(load: Load) -> None:
    submission = load(overrides=[BUFFER])
    stage = submission.spec.stages[0]
    assert (stage.dataset, stage.expert_rows, stage.experiences_per_step) == (None, 0, 8)
    assert any("auxiliary_buffers.sft_dataset has no effect" in text for text in submission.spec.warnings)


FAKE = ("trainer.trainer_type=fake", "explorer.rollout_model.engine_type=fake")
TASKS = "buffer.explorer_input.taskset.path=tasks.jsonl"


def expert(suffix: str, epochs: str) -> str:
    fields = f"path: rows.{suffix}, format: {{prompt_type: plaintext}}, total_epochs: {epochs}"
    return f"buffer.trainer_input.auxiliary_buffers={{sft_dataset: {{{fields}}}}}"


@pytest.fixture(params=sorted(WRITERS))
def suffix(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The format of an expert's nine rows, beside as many tasks."""
    rows = datasets.Dataset.from_list([{"prompt": f"{n}+1", "response": str(n + 1)} for n in range(9)])
    WRITERS[request.param](rows, tmp_path / f"rows.{request.param}")
    rows.to_json(tmp_path / "tasks.jsonl")
    return str(request.param)


def test_epochs_of_an_auxiliary_buffer_end_the_stage(load: Load, suffix: str) -> None:
    def counted(epochs: str) -> ExperimentSpec:
        ratio = "algorithm.sample_strategy_args={expert_data_ratio: 0.25}"
        return preflight(load(overrides=[MIX, ratio, expert(suffix, epochs), TASKS, *FAKE]).spec)

    enough = counted("2")
    assert (enough.stages[0].expert_rows, enough.stages[0].total_steps) == (2, 5), "its rows are enough for 9 steps"
    assert not any("were gone over" in text for text in enough.warnings)
    assert counted("null").stages[0].total_steps == 5
    cut = counted("1")
    assert cut.stages[0].total_steps == 9 // 2
    assert any("ends after 4 of 5 steps" in text and "auxiliary_buffers.sft_dataset" in text for text in cut.warnings)
    shown = effective_config(cut)["buffer"]["trainer_input"]["auxiliary_buffers"]["sft_dataset"]
    assert shown["total_epochs"] == 1


def test_an_auxiliary_buffer_has_rows_for_one_step_at_least(load: Load, tmp_path: Path) -> None:
    for name in ("rows", "tasks"):
        (tmp_path / f"{name}.jsonl").write_text('{"prompt": "1", "response": "2"}\n' * 3)
    with pytest.raises(ConfigError, match="1 epochs of 3 rows are fewer than the 4 of one step") as caught:
        preflight(load(overrides=[MIX, expert("jsonl", "1"), TASKS, *FAKE]).spec)
    assert caught.value.field == "buffer.trainer_input.auxiliary_buffers.sft_dataset.total_epochs"


@pytest.mark.parametrize(
    ("overrides", "field", "says", "fix"),
    [
        ([MIX], "auxiliary_buffers", "there is no such buffer (buffers: none)", "auxiliary_buffers.sft_dataset.path"),
        ([MIX, BUFFER, "algorithm.sample_strategy_args={expert_data_ratio: 1.0}"], "expert_data_ratio", "1.0", "0.5"),
        (
            [MIX, BUFFER, "algorithm.sample_strategy_args={expert_data_ratio: 0.99}"],
            "ratio",
            "would be expert rows",
            "lower",
        ),
        (
            [MIX, BUFFER.replace("/expert.jsonl", "sqlite:///x")],
            "sft_dataset.path",
            "from files",
            "a file or folder of rows",
        ),
        (
            [MIX, BUFFER.replace("path: /expert.jsonl, ", "")],
            "sft_dataset.path",
            "needs the path",
            "a file or folder of rows",
        ),
    ],
)
def test_what_cannot_be_mixed_is_refused(errors: Errors, overrides: list[str], field: str, says: str, fix: str) -> None:
    (text,) = errors(overrides=overrides)
    assert field in text, text
    assert says in text, text
    assert fix in text, text


def test_algorithms_of_an_expert_mix_by_themselves_and_not_without_rows(load: Load, errors: Errors) -> None:
    for kind in ("mix", "mix_chord"):
        stage = load(overrides=[f"algorithm.algorithm_type={kind}", BUFFER, "buffer.train_batch_size=16"]).spec.stages[
            0
        ]
        assert (stage.algorithm.sample_strategy, stage.expert_rows) == ("mix", 8)
        assert (stage.algorithm.policy_loss, stage.algorithm.entropy_loss) == (kind, "mix")
        (text,) = errors(overrides=[f"algorithm.algorithm_type={kind}"])
        assert "auxiliary_buffers" in text
        assert "there is no such buffer" in text
    (text,) = errors(overrides=["algorithm.algorithm_type=mix", "algorithm.sample_strategy=default"])
    assert "algorithm.sample_strategy" in text
    assert "an expert's rows" in text


def test_an_older_runs_experiences_may_be_the_auxiliary_data(load: Load, errors: Errors) -> None:
    recorded = BUFFER.replace("limit_rows: 9", "schema_type: experience, format: {prompt_key: q}")
    spec = load(overrides=[MIX, recorded]).spec
    stage = spec.stages[0]
    assert stage.dataset is not None
    assert (stage.dataset.schema, stage.expert_rows, stage.experiences_per_step) == ("experience", 4, 4)
    assert any("sft_dataset.format has no effect: recorded rollouts are token ids" in text for text in spec.warnings)
    section = effective_config(spec)["buffer"]["trainer_input"]["auxiliary_buffers"]["sft_dataset"]
    assert section["schema_type"] == "experience"
    (text,) = errors(overrides=["algorithm.algorithm_type=mix", recorded.replace(", format: {prompt_key: q}", "")])
    assert "sft_dataset.schema_type: is experience, but policy_loss_fn mix imitates an expert's texts" in text
    (text,) = errors(overrides=[MIX, BUFFER.replace("limit_rows: 9", "schema_type: dpo")])
    assert "sft_dataset.schema_type: is dpo, but the algorithm accepts sft or experience" in text

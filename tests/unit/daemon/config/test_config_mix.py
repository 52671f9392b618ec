"""`sample_strategy: mix`: an expert's rows beside the experiences of each batch."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rftd.daemon.config.loading import Submission

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


@pytest.mark.parametrize(
    ("overrides", "field", "says", "fix"),
    [
        ([MIX], "auxiliary_buffers", "there is no such buffer (given: none)", "auxiliary_buffers.sft_dataset.path"),
        ([MIX, BUFFER, "algorithm.sample_strategy_args={expert_data_ratio: 1.0}"], "expert_data_ratio", "1.0", "0.5"),
        (
            [MIX, BUFFER, "algorithm.sample_strategy_args={expert_data_ratio: 0.99}"],
            "ratio",
            "none is explored",
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

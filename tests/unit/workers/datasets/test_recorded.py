"""Rows with recorded rollouts: which are taken, and what is said of those that are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rftd.daemon.run.supervisor.row_looks import check_recorded
from rftd.ops.errors import DataError
from rftd.streams.spec.spec import AlgorithmSpec, ModelSpec, StageSpec, TasksetSpec, TrainerSpec
from rftd.workers.datasets.byte_tokenizer import ByteTokenizer
from rftd.workers.datasets.taskset import Taskset

ROW: dict[str, Any] = {"group": "a", "tokens": [5, 6, 7], "prompt_tokens": 1, "logprobs": [-0.5, -0.25], "reward": 1}
STEP = {"tokens": 2, "prompt_tokens": 1, "reward": 1.0}


def opened(folder: Path, *rows: dict[str, Any]) -> Taskset:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Taskset.open(TasksetSpec(name="t", path=str(path), schema="experience"))


def stage(folder: Path, engine: str = "torch") -> StageSpec:
    (folder / "config.json").write_text('{"vocab_size": 100}')
    return StageSpec(
        name="offline",
        kind="train",
        total_steps=1,
        batch_size=1,
        train_batch_size=1,
        algorithm=AlgorithmSpec(kind="grpo"),
        model=ModelSpec(path=str(folder), max_model_len=8, max_prompt_tokens=4, max_response_tokens=4),
        trainer=TrainerSpec(engine=engine),
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"logprobs": None}, "has no value under 'logprobs'"),
        ({"tokens": [5, -1, 7]}, "Expected `int` >= 0 - at `$.tokens[1]`"),
        ({"tokens": "[5, 6"}, "has a text under 'tokens' that is no JSON"),
        ({"prompt_tokens": 3}, "its prompt has 3 of 3 tokens, which leaves no response"),
        ({"logprobs": [-0.5]}, "logprobs has 1 numbers for 2 response tokens"),
        ({"logprobs": [-0.5, 0.7]}, "0.7 is no log-probability"),
        ({"loss_mask": [1]}, "loss_mask has 1 numbers for 2 response tokens"),
        ({"loss_mask": [1, 2]}, "Expected `int` <= 1"),
        ({"temperature": [1.0]}, "temperature has 1 numbers for 2 response tokens"),
        ({"reward": "high"}, "Expected `float`, got `str` - at `$.reward`"),
        ({"tokens": list(range(9)), "logprobs": [0.0] * 8}, "a sequence of 9 tokens, and model.max_model_len is 8"),
        ({"steps": [STEP]}, "its steps are no parts of 3 tokens with 1 in prompts"),
    ],
)
def test_a_row_without_a_sound_rollout_is_refused_with_its_line(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    with opened(tmp_path, ROW, ROW | change) as taskset, pytest.raises(DataError) as error:
        check_recorded(taskset, stage(tmp_path))
    assert words in error.value.what
    assert "rows.jsonl:2" in str(error.value.where)


def test_rows_of_one_group_apart_are_refused(tmp_path: Path) -> None:
    with opened(tmp_path, ROW, ROW | {"group": "b"}, ROW) as taskset, pytest.raises(DataError) as error:
        check_recorded(taskset, stage(tmp_path))
    assert "has group 'a' of row 0, and rows of other groups lie between" in error.value.what
    assert "rows.jsonl:3" in str(error.value.where)


def test_a_token_beyond_the_vocabulary_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path, ROW | {"tokens": [5, 6, 100]}) as taskset:
        check_recorded(taskset, stage(tmp_path, engine="fake"))
        with pytest.raises(DataError, match="has token 100, and the model has a vocabulary of 100"):
            check_recorded(taskset, stage(tmp_path))


def test_a_row_of_steps_is_a_sequence_for_each(tmp_path: Path) -> None:
    row = ROW | {
        "tokens": [5, 6, 7, 8, 9],
        "prompt_tokens": 2,
        "logprobs": [-0.5, -0.25, -0.125],
        "loss_mask": [1, 0, 1],
        "steps": [STEP, STEP | {"tokens": 3}],
    }
    with opened(tmp_path, row) as taskset:
        first, second = taskset.train_rows(0, tokenizer=ByteTokenizer(), max_model_len=8)
    assert (first.tokens.tolist(), first.prompt_tokens, first.loss_mask.tolist()) == ([5, 6], 1, [1])
    assert (second.tokens.tolist(), second.prompt_tokens, second.loss_mask.tolist()) == ([7, 8, 9], 1, [0, 1])
    assert first.tokens.dtype == np.uint32

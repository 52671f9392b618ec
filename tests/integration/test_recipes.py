"""The recipes of examples/ for rows of a dataset, through the real trainer: each learns what it is for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rftd.daemon.config.loading import load_text
from rftd.daemon.run.supervisor.preflight import preflight
from rftd.ops.clock import Clock
from rftd.ops.errors import DataError
from rftd.ops.ids import Ids
from rftd.streams.events.step import StepCompleted
from rftd.streams.folds.spine import Status
from rftd.streams.log import topics
from rftd.streams.log.codec import decode
from rftd.streams.log.topics import partition_of
from rftd.streams.spec.spec import ExperimentSpec
from rftd.streams.sqlite.log import SqliteLog
from rftd.workers.models.tiny_model import make_tiny_model

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = 60
SMALL = (
    "model.max_model_len=48",
    "buffer.train_batch_size=16",
    f"buffer.total_steps={STEPS}",
    "algorithm.optimizer={lr: 0.003, lr_scheduler_type: constant}",
    "trainer.save_interval=0",
)


def ask(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def say(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def numbers() -> Iterable[tuple[int, int]]:
    return ((a, b) for a in range(10) for b in range(10) if a != b)


ROWS: Mapping[str, list[dict[str, Any]]] = {
    "sft": [
        {"messages": [ask(str(a)), say(str((a + 1) % 10)), ask(str(b)), say(str((b + 1) % 10))]} for a, b in numbers()
    ],
    "dpo": [
        {"prompt": [ask(f"{a} {b}")], "chosen": [say(f"{max(a, b)}.")], "rejected": [say(f"{min(a, b)}.")]}
        for a, b in numbers()
    ],
    "kto": [
        {"prompt": [ask(f"{a} {b}")], "completion": [say(f"{max(a, b) if right else min(a, b)}.")], "label": right}
        for (a, b), right in zip(numbers(), cycle((True, False, True)))
    ],
    "cpt": [{"text": f"after {a} comes {(a + 1) % 10}, after {b} comes {(b + 1) % 10}."} for a, b in numbers()],
}


def accepted(name: str, folder: Path, rows: Iterable[Mapping[str, Any]]) -> ExperimentSpec:
    """The example, small, as the daemon takes it."""
    make_tiny_model(folder / "model", seed=3, hidden_size=48, heads=2)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = (EXAMPLES / f"{name}.yaml").read_text()
    return preflight(load_text(text, name, overrides=SMALL, environ={}, cwd=folder).spec)


async def trained(name: str, folder: Path, clock: Clock, ids: Ids, fake_world: Any) -> list[dict[str, float]]:
    """The figures of each step."""
    spec = accepted(name, folder, ROWS[name])
    log = await SqliteLog.open(folder / "log")
    state = await fake_world.completed(log, spec, clock, ids)
    assert state.spine.status is Status.COMPLETED, (state.spine.code, state.spine.reason)
    home = partition_of(topics.EXPERIMENTS, state.experiment)
    events = [decode(record).event for record in await log.read(home, 0, max_records=10_000)]
    await log.close()
    return [event.metrics for event in events if isinstance(event, StepCompleted)]


def over(steps: list[dict[str, float]], name: str, part: slice) -> float:
    return float(np.mean([step[name] for step in steps[part]]))


FIRST, LAST = slice(0, 5), slice(-5, None)


@pytest.mark.anyio
async def test_preferences_raise_the_margin_and_its_accuracy(tmp_path: Path, clock, ids, fake_world) -> None:
    steps = await trained("dpo", tmp_path, clock, ids, fake_world)
    assert len(steps) == STEPS
    assert steps[0]["actor/dpo_loss"] == pytest.approx(np.log(2), abs=1e-5), "the model is its own reference"
    margin = over(steps, "actor/chosen_reward", LAST) - over(steps, "actor/rejected_reward", LAST)
    assert margin > 0.3
    assert over(steps, "actor/accuracy_mean", LAST) > 0.8
    assert over(steps, "actor/dpo_loss", LAST) < 0.6
    assert "actor/kl_loss" not in steps[0]


@pytest.mark.anyio
async def test_labelled_answers_move_apart_from_the_reference(tmp_path: Path, clock, ids, fake_world) -> None:
    steps = await trained("kto", tmp_path, clock, ids, fake_world)
    assert len(steps) == STEPS
    assert steps[0]["actor/kto_loss"] == pytest.approx(0.5, abs=1e-5), "the model is its own reference"
    assert over(steps, "actor/chosen_reward", LAST) > over(steps, "actor/rejected_reward", LAST) + 0.3
    assert over(steps, "actor/kto_loss", LAST) < 0.45
    assert any(step["actor/reference_kl"] > 0 for step in steps)
    assert "actor/accuracy_mean" not in steps[0], "answers have no partner"


@pytest.mark.parametrize(
    ("row", "field", "what"),
    [
        ({"label": "good"}, "label_key", "has \"good\" under 'label', which is true for a desirable answer"),
        ({"label": None}, "label_key", "null under 'label'"),
        ({"completion": "5"}, "completion_key", "has messages under 'completion' that"),
        ({"prompt": None}, "prompt_key", "null under 'prompt'"),
    ],
)
def test_every_labelled_row_is_looked_at_before_it_is_queued(
    tmp_path: Path, row: dict[str, Any], field: str, what: str
) -> None:
    rows = [*ROWS["kto"]]
    rows[70] = rows[70] | row
    with pytest.raises(DataError, match=what) as caught:
        accepted("kto", tmp_path, rows)
    assert caught.value.field == f"buffer.trainer_input.experience_buffer.format.{field}"
    assert f"{tmp_path / 'rows.jsonl'}:71, taskset 'labelled'" in str(caught.value.where)


@pytest.mark.anyio
@pytest.mark.parametrize(("name", "at_most"), [("cpt", 0.5), ("sft", 0.5)])
async def test_likelihood_rises(name: str, at_most: float, tmp_path: Path, clock, ids, fake_world) -> None:
    steps = await trained(name, tmp_path, clock, ids, fake_world)
    first, last = (over(steps, "actor/sft_loss", part) for part in (FIRST, LAST))
    assert len(steps) == STEPS
    assert last < at_most * first

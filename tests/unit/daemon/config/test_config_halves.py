"""Halves that are written apart: what each fixes, what must agree, and the file that both make."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rftd.daemon.config.loading import Submission, check_config
from rftd.streams.split_submission import Disagreement, has_tasks, joined

Load = Callable[..., Submission]
Errors = Callable[..., list[str]]

WRITTEN_APART = [
    (("explorer.runner_per_model=3", "explorer.rollout_model.engine_num=2"), ("trainer.save_interval=7",)),
    (("explorer.max_timeout=5",), ("algorithm.optimizer.lr=0.125", "algorithm.policy_loss_fn_args={clip_range: 0.3}")),
    # What a half writes of the other one's fields is not asked for.
    (("trainer.save_interval=9", "algorithm.optimizer.lr=0.75"), ("explorer.runner_per_model=9",)),
    (
        ("buffer.batch_size=2", "buffer.train_batch_size=16", "model.temperature=0.5", "explorer.eval_interval=5"),
        (
            "buffer.explorer_input={}",
            "buffer.batch_size=1",
            "buffer.train_batch_size=16",
            "algorithm.loss_agg_mode=seq-mean-token-mean",
        ),
    ),
]


@pytest.mark.parametrize(("explores", "trains"), WRITTEN_APART)
def test_halves_that_are_written_apart_join(load: Load, explores: tuple[str, ...], trains: tuple[str, ...]) -> None:
    explore = load(overrides=["mode=explore", *explores]).spec
    train = load(overrides=["mode=train", *trains]).spec
    (one,), (other,) = explore.stages, train.stages
    for known, half in ((explore, train), (train, explore)):
        both = joined(known, half)
        assert not isinstance(both, Disagreement), both
        (stage,) = both.stages
        assert (stage.rollout, stage.taskset, stage.evals) == (one.rollout, one.taskset, one.evals)
        assert (stage.trainer, stage.algorithm.optimizer) == (other.trainer, other.algorithm.optimizer)
        assert (both.half, both.config["mode"]) == (known.half, known.half)
        again = check_config(both.config)
        assert again.stages == both.stages, "a fork reads the file that both make"
        assert joined(both, half) == both, "a half that comes again changes nothing"
    assert has_tasks(explore)


def test_fields_that_both_halves_use_must_agree(load: Load) -> None:
    explore = load(overrides=["mode=explore"]).spec
    for override, field in (
        ("buffer.train_batch_size=16", "stages[0].train_batch_size"),
        ("model.max_model_len=512", "stages[0].model.max_model_len"),
        ("synchronizer.sync_timeout=5", "stages[0].sync.timeout_s"),
        ("explorer.rollout_model.dtype=float16", "stages[0].rollout.dtype"),
        ("buffer.explorer_input.taskset.path=/other.jsonl", "stages[0].taskset.path"),
        ("seed=1", "seed"),
    ):
        found = joined(explore, load(overrides=["mode=train", override]).spec)
        assert isinstance(found, Disagreement), override
        assert found.field == field
    train = load(overrides=["mode=train", "algorithm.optimizer.lr=0.25"]).spec
    assert not isinstance(joined(explore, train), Disagreement)
    found = joined(explore, train, trained=True)
    assert isinstance(found, Disagreement)
    assert found.field == "stages[0].algorithm.optimizer.lr", "steps were taken with the other one"


def test_a_train_half_without_tasks_says_how_many_steps_it_takes(load: Load, errors: Errors) -> None:
    apart = ["mode=train", "buffer.explorer_input={}"]
    assert not has_tasks(load(overrides=apart).spec)
    (text,) = errors(overrides=[*apart, "buffer.total_steps=null"])
    assert "] buffer.total_steps: is not given" in text
    (text,) = errors(overrides=["mode=explore", "buffer.explorer_input={}"])
    assert "names no taskset" in text

"""Halves that are written apart: what each fixes, what must agree, and the file that both make."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from synthetic.models.gpu_hosts import gpus

from rftd.daemon.config.loading import Submission, check_config
from rftd.streams.spec.engines import WorkerMemory
from rftd.streams.spec.spec import ExperimentSpec
from rftd.streams.spec.split_submission import Disagreement, filled, has_tasks, joined
from rftd.workers.devices.host import ANY_HOST, Host

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


CUDA = gpus(8, vllm="0.31.0", verl="0.9.1")
LAPTOP = Host(no_gpu="nvidia-smi not found")


@pytest.mark.parametrize("explores", [CUDA, LAPTOP, ANY_HOST])
@pytest.mark.parametrize("trains", [CUDA, LAPTOP, ANY_HOST])
def test_each_half_has_the_engine_that_one_file_has_on_its_machine(load: Load, explores: Host, trains: Host) -> None:
    explore = load(overrides=["mode=explore"], host=explores).spec
    train = load(overrides=["mode=train"], host=trains).spec
    rollout = load(host=explores).spec.stages[0].rollout
    trainer = load(host=trains).spec.stages[0].trainer
    for known, half in ((explore, train), (train, explore)):
        both = joined(known, half)
        assert not isinstance(both, Disagreement), both
        assert (both.stages[0].rollout, both.stages[0].trainer) == (rollout, trainer)
        assert joined(both, half) == both, "a half that comes again changes nothing"
    late = joined(train, explore, trained=True)
    assert not isinstance(late, Disagreement), late
    assert late.stages[0].rollout.dtype == train.stages[0].rollout.dtype, "its trainer began with that"
    assert late.stages[0].rollout.engine == rollout.engine


def test_each_half_brings_the_memory_of_its_own_workers(load: Load) -> None:
    def with_rows(mode: str, device: str) -> ExperimentSpec:
        rows = tuple(
            WorkerMemory(role=role, stage="main", workers=1, device=device, device_bytes=1, needs=())
            for role in ("trainer", "explorer")
        )
        return msgspec.structs.replace(load(overrides=[f"mode={mode}"]).spec, memory=rows)

    both = joined(with_rows("explore", "A"), with_rows("train", "B"))
    assert not isinstance(both, Disagreement), both
    assert [(row.role, row.device) for row in both.memory] == [("trainer", "B"), ("explorer", "A")]


SHARED = [
    ("buffer.train_batch_size=16", "buffer.train_batch_size=8", "stages[0].train_batch_size"),
    ("synchronizer.sync_timeout=5", "synchronizer.sync_timeout=6", "stages[0].synchronizer.sync_timeout"),
    ("policy={kind: hard_bound, max_staleness: 9}", "policy={kind: hard_bound, max_staleness: 8}", "stages[0].policy"),
    ("algorithm.advantage_fn_args.epsilon=0.5", "algorithm.advantage_fn_args.epsilon=0.25", "stages[0].algorithm"),
    ("explorer.rollout_model.dtype=float16", "explorer.rollout_model.dtype=float32", "stages[0].rollout.dtype"),
]


@pytest.mark.parametrize(("one", "other", "field"), SHARED)
def test_what_both_halves_use_is_said_by_either_and_refused_if_they_differ(
    load: Load, one: str, other: str, field: str
) -> None:
    plain = {half: load(overrides=[f"mode={half}"]).spec for half in ("explore", "train")}
    for half, silent in (("explore", "train"), ("train", "explore")):
        speaks = load(overrides=[f"mode={half}", one]).spec
        for pair in ((speaks, plain[silent]), (plain[silent], speaks)):
            both = joined(*pair)
            assert not isinstance(both, Disagreement), both
            assert both.stages == load(overrides=["mode=both", one]).spec.stages or half == "explore"
            assert check_config(both.config).stages == both.stages, "a fork reads the file that both make"
            assert joined(both, pair[1]) == both, "a half that comes again changes nothing"
        differs = load(overrides=[f"mode={silent}", other]).spec
        for pair in ((speaks, differs), (differs, speaks)):
            found = joined(*pair)
            assert isinstance(found, Disagreement)
            assert found.field.startswith(field)
            assert found.one != found.other
    late = joined(plain["train"], load(overrides=["mode=explore", one]).spec, trained=True)
    assert isinstance(late, Disagreement), "steps were taken without it"


def test_each_half_may_say_another_part_of_one_section(load: Load) -> None:
    first = load(overrides=["mode=explore", "synchronizer.sync_offset=1"]).spec
    second = load(overrides=["mode=train", "synchronizer.sync_interval=2", "buffer.explorer_input={}"])
    assert isinstance(joined(first, second.spec), Disagreement)
    whole = check_config(filled(second.config, first.config))
    both = joined(first, whole)
    assert not isinstance(both, Disagreement), both
    assert (both.stages[0].synchronizer.sync_interval, both.stages[0].synchronizer.sync_offset) == (2, 1)
    assert check_config(both.config).stages == both.stages


def test_fields_that_both_halves_use_must_agree(load: Load) -> None:
    explore = load(overrides=["mode=explore"]).spec
    for override, field in (
        ("model.max_model_len=512", "stages[0].model.max_model_len"),
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
    assert "] buffer.total_steps: is not set" in text
    (text,) = errors(overrides=["mode=explore", "buffer.explorer_input={}"])
    assert "names no taskset" in text

"""Forks on fake engines: the same history, then their own way; equal weights where nothing was changed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from synthetic.daemon.fork_desk import STEPS, ForkDesk
from synthetic.until import until

from rftd.daemon.config.issue import ConfigErrors
from rftd.daemon.run.supervisor import intake
from rftd.ops import faults
from rftd.ops.errors import ConfigError, ConflictError, NotFoundError, RftdError, UsageError
from rftd.ops.ids import NAMESPACE, derive
from rftd.streams.events.experiment import ExperimentForked
from rftd.streams.log.log import EventLog
from rftd.streams.log.shared_history import SharedHistory, shared_history


@pytest.fixture
def desk(tmp_path: Path, log: EventLog, clock, ids, fake_world) -> ForkDesk:
    return ForkDesk(tmp_path, log, fake_world.executor(log, clock, ids), clock, ids)


async def weights(desk: ForkDesk, experiment: UUID) -> dict[int, str]:
    """The checksum of each version that the experiment's own steps made."""
    return {step: done.checksum for step, done in (await desk.record(experiment)).surviving().items()}


@pytest.mark.anyio
@pytest.mark.parametrize("at_step", [0, 2, 3, 4, 7, 8])
async def test_a_fork_without_changes_makes_the_weights_of_its_parent(desk: ForkDesk, fake_world, at_step: int) -> None:
    async with desk.open() as supervisor:
        parent = await desk.submit(supervisor)
        fork = await desk.fork(supervisor, parent, at_step)
        await desk.completed(fork.experiment)
    made, own = await weights(desk, parent), await weights(desk, fork.experiment)
    assert sorted(own) == list(range(at_step + 1, STEPS + 1))
    assert own == {step: made[step] for step in own}
    report = await fake_world.verified(desk.log)
    assert report.clean, report.findings


@pytest.mark.anyio
async def test_a_fork_of_a_fork_and_what_it_is_called(desk: ForkDesk, fake_world) -> None:
    async with desk.open() as supervisor:
        parent = await desk.submit(supervisor)
        one = await desk.fork(supervisor, parent, 6, "algorithm.optimizer.lr=0.25")
        await desk.completed(one.experiment)
        two = await desk.fork(supervisor, one.experiment, 8)
        shared = await desk.fork(supervisor, one.experiment, 5, name="early")
        await desk.completed(two.experiment)
        await desk.completed(shared.experiment)
    assert (one.name, two.name) == ("sums-fork-6", "sums-fork-6-fork-8")
    assert (one.parent, two.parent) == (parent, one.experiment)
    assert shared.parent == parent
    assert any("fork of sums with" in text for text in shared.warnings)
    made = await weights(desk, one.experiment)
    assert await weights(desk, two.experiment) == {step: made[step] for step in (9, 10)}
    assert sorted(await weights(desk, shared.experiment)) == list(range(6, STEPS + 1))
    spec = (await desk.state(two.experiment)).spine.spec
    assert spec is not None
    assert spec.stages[1].algorithm.optimizer.lr == 0.25
    report = await fake_world.verified(desk.log)
    assert report.clean, report.findings


@pytest.mark.anyio
@pytest.mark.parametrize("gone", ["newest", "every"])
async def test_damaged_checkpoints_of_the_parent_are_passed_over(desk: ForkDesk, gone: str) -> None:
    async with desk.open() as supervisor:
        parent = await desk.submit(supervisor)
        kept = sorted((await desk.state(parent)).checkpoints.items())
        for _, checkpoint in kept if gone == "every" else [each for each in kept if each[0][0] == 8]:
            (Path(checkpoint.path) / "actor" / "state.json").write_text("{}")
        fork = await desk.fork(supervisor, parent, 8)
        await desk.completed(fork.experiment)
    record = await desk.record(fork.experiment)
    assert "step 8: checkpoint file state.json" in record.generations[0].reason
    assert (record.generations[0].checkpoint == "") == (gone == "every")
    made = await weights(desk, parent)
    assert await weights(desk, fork.experiment) == {step: made[step] for step in (9, 10)}


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize("where", ["checkpoint.after_files", "checkpoint.after_append", "trainer.before_step"])
async def test_a_trainer_that_dies_early_takes_the_history_up_again(
    desk: ForkDesk, fake_world, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    died: list[str] = []
    async with desk.open() as supervisor:
        parent = await desk.submit(supervisor)

        def die(name: str) -> None:
            if name == where and not died:
                died.append(name)
                raise RuntimeError("killed")

        monkeypatch.setattr(faults, "point", die)
        fork = await desk.fork(supervisor, parent, 7)
        await desk.completed(fork.experiment)
    assert died
    made = await weights(desk, parent)
    assert await weights(desk, fork.experiment) == {step: made[step] for step in (8, 9, 10)}
    report = await fake_world.verified(desk.log)
    assert report.clean, report.findings


@pytest.mark.anyio
async def test_another_daemon_goes_on_and_the_request_is_the_same(desk: ForkDesk, fake_world) -> None:
    key = derive(NAMESPACE, "request")
    async with desk.open() as supervisor:
        parent = await desk.submit(supervisor)
        first = await desk.fork(supervisor, parent, 6, request_id=key)
    async with desk.open() as supervisor:
        again = await desk.fork(supervisor, parent, 6, request_id=key)
        await desk.completed(first.experiment)
        later = await desk.fork(supervisor, parent, 6, request_id=key)
        other = await desk.fork(supervisor, parent, 6)
    assert first == again == later
    assert other.name == "sums-fork-6-2"
    assert other.experiment != first.experiment
    assert (await fake_world.verified(desk.log)).clean


@pytest.mark.anyio
async def test_the_end_of_a_stage_begins_the_next_or_goes_on_in_it(desk: ForkDesk, fake_world) -> None:
    async with desk.open() as supervisor:
        parent = await desk.submit(supervisor)
        longer = await desk.fork(supervisor, parent, STEPS, "buffer.total_steps=8")
        shorter = await desk.fork(supervisor, parent, 2, "stages[0].buffer.total_steps=2")
        rows = await desk.fork(supervisor, parent, 2, "stages[0].buffer.train_batch_size=8")
        for fork in (longer, shorter, rows):
            await desk.completed(fork.experiment)
    assert sorted(await weights(desk, longer.experiment)) == [11, 12]
    assert sorted(await weights(desk, shorter.experiment)) == list(range(3, 9))
    assert (await desk.state(shorter.experiment)).spine.first_versions == {0: 0, 1: 2}
    report = await fake_world.verified(desk.log)
    assert report.clean, report.findings


@pytest.mark.anyio
async def test_what_cannot_be_forked(desk: ForkDesk) -> None:
    async with desk.open() as supervisor:
        parent = await desk.submit(supervisor)
        other = str(desk.folder / "eval.jsonl")
        refusals: tuple[tuple[int, tuple[str, ...], type[RftdError], str], ...] = (
            (11, (), ConflictError, "step 11 was not executed; the last one is 10"),
            (-1, (), UsageError, "there is no step -1"),
            (STEPS, (), ConfigError, "nothing is left to do after step 10"),
            (8, ("buffer.total_steps=3",), ConfigError, "4 of them are trained"),
            (5, ("model.model_path=/other",), ConfigError, "its history began with fake"),
            (5, ("trainer.trainer_type=torch",), ConfigError, "trained by the engine 'fake'"),
            (5, ("stages[1].stage_name=other",), ConfigError, "the stages up to step 5 are warmup, rft"),
            (7, (f"buffer.explorer_input.taskset.path={other}",), ConfigError, "has begun on another dataset"),
            (5, ("buffer.no_such=1",), ConfigErrors, "no_such"),
        )
        for at_step, overrides, kind, text in refusals:
            with pytest.raises(kind, match=re.escape(text)):
                await desk.fork(supervisor, parent, at_step, *overrides)
        with pytest.raises(NotFoundError):
            await desk.fork(supervisor, NAMESPACE, 1)
        early = await desk.fork(supervisor, parent, 4, f"buffer.explorer_input.taskset.path={other}")
        ignored = await desk.fork(supervisor, parent, 6, "stages[0].buffer.train_batch_size=2")
        assert any("warmup was trained before the fork" in text for text in ignored.warnings)
        await desk.completed(early.experiment)


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_running_parent_is_forked_and_its_unfinished_groups_are_given_out_again(
    desk: ForkDesk, fake_world, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An asynchronous run: what waited or was under way when the shared batch was planned is explored anew."""
    asynchronous = (
        *("deterministic=false", "synchronizer.sync_style=fully_async", "explorer.max_inflight_batches=3"),
        *("buffer.total_steps=20", "trainer.engine_args={step_s: 0.05}"),
        "explorer.rollout_model.extra_engine_args={latency_s: 0.03, latency_sigma: 1.0}",
    )
    async with desk.open() as supervisor:
        submitted = asyncio.ensure_future(desk.submit(supervisor, *asynchronous))
        await until(lambda: any(run.state.spine.furthest >= 12 for run in supervisor.runs))
        parent = next(iter(supervisor.runs)).state.experiment
        step = await _with_work_left(desk.log, parent, range(12, 5, -1))
        fork = await desk.fork(supervisor, parent, step)
        await submitted
        state = await desk.completed(fork.experiment)
    forked = state.spine.forked
    assert forked is not None, "something was under way"
    assert forked.redo, "something was under way"
    assert sorted(await weights(desk, fork.experiment)) == list(range(step + 1, 25))
    report = await fake_world.verified(desk.log)
    assert report.clean, report.findings

    async def forgetful(log: EventLog, experiment: UUID, at_step: int) -> SharedHistory:
        shared = await shared_history(log, experiment, at_step)
        return msgspec.structs.replace(shared, forked=msgspec.structs.replace(shared.forked, redo=()))

    monkeypatch.setattr(intake, "shared_history", forgetful)
    async with desk.open() as supervisor:
        await desk.fork(supervisor, parent, step)
    report = await fake_world.verified(desk.log)
    assert any("were never settled" in each.what for each in report.findings), "though its parent settled them later"


async def _with_work_left(log: EventLog, parent: UUID, steps: Iterable[int]) -> int:
    """The first of the steps at whose batch something waited or was under way."""
    for step in steps:
        if (await shared_history(log, parent, step)).forked.redo:
            return step
    raise AssertionError("explorers were never ahead of the trainer")


@pytest.mark.anyio
async def test_verify_finds_forks_that_do_not_share_their_parents_history(
    desk: ForkDesk, fake_world, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Positive controls: each planted bug is found by the rule of forks."""

    def forked_as(**wrong: object) -> None:
        async def sharing(log: EventLog, experiment: UUID, at_step: int) -> SharedHistory:
            shared = await shared_history(log, experiment, at_step)
            right = shared.forked
            spoilt = {name: value(right) if callable(value) else value for name, value in wrong.items()}
            return msgspec.structs.replace(shared, forked=msgspec.structs.replace(right, **spoilt))

        monkeypatch.setattr(intake, "shared_history", sharing)

    def one_less(right: ExperimentForked) -> int:
        return right.next_sequence - 1

    def far_more(right: ExperimentForked) -> int:
        return right.next_sequence + 1000

    bugs = {
        "no step 7 with checksum": {"checksum": "0" * 32},
        "began elsewhere": {"first_versions": (0, 3)},
        "are leased again, and shared batches": {"redo": (0,)},
        "and shared batches contain them": {"next_sequence": one_less},
        "were never settled": {"next_sequence": far_more},
    }
    async with desk.open() as supervisor:
        parent = await desk.submit(supervisor)
        named = {}
        for said, wrong in bugs.items():
            forked_as(**wrong)
            named[(await desk.fork(supervisor, parent, 7)).experiment] = said
    report = await fake_world.verified(desk.log)
    for experiment, said in named.items():
        found = [
            each.what for each in report.findings if (each.rule, each.experiment) == ("forks-share-history", experiment)
        ]
        assert any(said in what for what in found), (said, found)


@pytest.mark.anyio
async def test_a_file_submitted_again_goes_on_from_what_ended_in_its_folder(
    desk: ForkDesk, fake_world, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "stamped", lambda name, now_ns: f"{name}_20260102030405")  # all in one second
    async with desk.open() as supervisor:
        first = await desk.submit(supervisor, "stages.1.buffer.total_steps=2")
        with pytest.raises(ConfigError, match="nothing is left to do after step 6"):
            await desk.hand_in(supervisor, "stages.1.buffer.total_steps=2")
        second = await desk.hand_in(supervisor, "stages.1.buffer.total_steps=4")
        with pytest.raises(ConflictError, match="has not ended"):
            await desk.hand_in(supervisor)
        await desk.completed(second)
        third = await desk.submit(supervisor)
        fresh = await desk.submit(supervisor, "continue_from_checkpoint=false", "stages.1.buffer.total_steps=1")
    steps = [sorted(await weights(desk, each)) for each in (first, second, third, fresh)]
    assert steps == [[1, 2, 3, 4, 5, 6], [7, 8], [9, 10], [1, 2, 3, 4, 5]]
    spines = [(await desk.state(each)).spine for each in (first, second, third, fresh)]
    parents = [spine.forked.parent if spine.forked else None for spine in spines]
    assert parents == [None, first, second, None]
    folders = [Path(spine.spec.job_dir).name for spine in spines if spine.spec]
    assert folders == ["sums", *(f"sums_20260102030405{number}" for number in ("", "-2", "-3"))]
    report = await fake_world.verified(desk.log)
    assert report.clean, report.findings

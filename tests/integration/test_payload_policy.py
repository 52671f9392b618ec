"""Payloads leave the log by policy while workers die; what is trained and folded is what it was with them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import pytest
from synthetic.daemon.fork_desk import ForkDesk
from synthetic.daemon.moved_clock import MovedClock

from rftd.daemon.run.supervisor.supervisor import Supervisor
from rftd.daemon.serve.keeping import Keep, Keeping
from rftd.ops.errors import ConflictError, NotFoundError
from rftd.streams.events.experience import ExperienceProduced
from rftd.streams.events.experiment import PayloadsDropped
from rftd.streams.folds.run_state import RunState
from rftd.streams.folds.spine import Kept
from rftd.streams.log import topics
from rftd.streams.log.codec import decode
from rftd.streams.log.log import EventLog
from rftd.streams.sqlite.log import SqliteLog

pytestmark = pytest.mark.anyio

DAY_S = 86_400.0
WARM_UP = """{stage_name: warmup, mode: train, algorithm: {algorithm_type: sft}, buffer: {train_batch_size: 4,
total_steps: 4, trainer_input: {experience_buffer: {name: warmup, path: ./train.jsonl,
format: {prompt_type: raw, prompt_key: question, response_key: answer}}}}}"""
"""A stage that makes no experience."""


@pytest.fixture(autouse=True)
def _soon_and_however_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drops the short payloads of fake engines too, and looks for them often."""
    monkeypatch.setattr("rftd.streams.log.payloads.worth_it", lambda whole_bytes, thin_bytes: whole_bytes != thin_bytes)
    monkeypatch.setattr("rftd.daemon.run.supervisor.payloads.EVERY_S", 0.02)


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[EventLog]:
    """The embedded log: a record on Kafka stays what it was."""
    opened = await SqliteLog.open(tmp_path / "log")
    yield opened
    await opened.close()


@asynccontextmanager
async def at_work(desk: ForkDesk, keeping: Keeping) -> AsyncIterator[Supervisor]:
    """A daemon at work that keeps payloads by these rules."""
    async with desk.open(keeping=keeping) as supervisor:
        looking = asyncio.ensure_future(supervisor.keep_payloads())
        try:
            yield supervisor
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)


async def experiences(log: EventLog, experiment: UUID) -> tuple[int, int]:
    """How many experiences the experiment has, and how many of them have no payload."""
    whole = thin = 0
    for partition in topics.TRUTH:
        start = 0
        while records := await log.read(partition, start):
            start = records[-1].offset + 1
            for record in records:
                decoded = decode(record)
                if decoded.head.experiment == experiment and isinstance(decoded.event, ExperienceProduced):
                    whole += 1
                    thin += record.thin
    return whole, thin


async def dropped(log: EventLog, experiment: UUID) -> list[PayloadsDropped]:
    home, found, start = topics.partition_of(topics.EXPERIMENTS, experiment), [], 0
    while records := await log.read(home, start):
        start = records[-1].offset + 1
        events = [decode(record) for record in records]
        found += [
            each.event
            for each in events
            if each.head.experiment == experiment and isinstance(each.event, PayloadsDropped)
        ]
    return found


async def reported(log: EventLog, experiment: UUID, reason: str, times: int = 1) -> None:
    """Returns once so many reports for this reason name dropped records."""
    follower = log.subscribe({topics.partition_of(topics.EXPERIMENTS, experiment): 0})
    async with asyncio.timeout(30):
        while sum(event.reason == reason and event.records > 0 for event in await dropped(log, experiment)) < times:
            await follower.next(wait_s=1.0)
    await follower.close()


@pytest.mark.slow
async def test_what_is_trained_goes_and_the_weights_are_the_same(
    tmp_path: Path, log: EventLog, clock, ids, fake_world
) -> None:
    desk = ForkDesk(tmp_path, log, fake_world.executor(log, clock, ids), clock, ids)
    longer = "buffer.total_steps=40"
    async with desk.open() as supervisor:
        untouched = await desk.submit(supervisor, "name=untouched", longer)
        first = await desk.completed(untouched)
    async with at_work(desk, Keeping(payloads=Keep.UNTIL_TRAINED)) as supervisor:
        slim = await desk.hand_in(supervisor, "name=slim", longer)
        await reported(log, slim, "trained")
        for handle in desk.executor.handles:
            handle.kill()
        await desk.ended(slim)
        second = await desk.completed(slim)
        await reported(log, slim, "ended")
    assert second.spine.generation >= 1, "a trainer came back while payloads went"
    assert made(first) == made(second)
    assert len(made(first)) == 44
    assert await experiences(log, slim) == (40 * 16, 40 * 16)
    report = await fake_world.verified(log)
    assert report.clean, report.findings


def made(state: RunState) -> dict[int, str]:
    """The checksum of the weights that each step made last."""
    return {step: state.spine.checksums[step, generation] for step, generation in sorted(state.spine.checksums)}


async def test_a_fork_is_refused_where_its_payload_is_gone(
    tmp_path: Path, log: EventLog, clock, ids, fake_world
) -> None:
    desk = ForkDesk(tmp_path, log, fake_world.executor(log, clock, ids), clock, ids)
    async with at_work(desk, Keeping(payloads=Keep.UNTIL_ENDED)) as supervisor:
        parent = await desk.submit(supervisor)
        await reported(log, parent, "ended")
        with pytest.raises(ConflictError, match="tokens that sums was trained on up to step 10 were dropped") as error:
            await desk.fork(supervisor, parent, 7)
        assert error.value.fix == "fork it at step 10"


async def test_an_archive_takes_the_payload_and_brings_it_back(
    tmp_path: Path, log: EventLog, clock, ids, fake_world
) -> None:
    desk = ForkDesk(tmp_path, log, fake_world.executor(log, clock, ids), clock, ids)
    async with at_work(desk, Keeping()) as supervisor:
        parent = await desk.hand_in(supervisor)
        await desk.ended(parent)
        await desk.left()
        await supervisor.archive(parent, to="", request_id=ids.new())
        await reported(log, parent, "archived")
        whole, thin = await experiences(log, parent)
        assert thin == whole > 0
        record = await desk.record(parent)
        assert record.state.spine.kept is Kept.ARCHIVED
        await supervisor.restore(parent, source="", request_id=ids.new())
        assert await experiences(log, parent) == (whole, 0)
        fork = await desk.fork(supervisor, parent, 7)
        await desk.completed(fork.experiment)
        await supervisor.archive(parent, to="", request_id=ids.new())
        await reported(log, parent, "archived", times=2)
        await supervisor.remove(parent, reason="", archive=False, request_id=ids.new())
    report = await fake_world.verified(log)
    assert report.clean, report.findings
    with pytest.raises(NotFoundError, match="were dropped"):
        await _tokens(log, parent)


async def test_payloads_go_by_the_age_of_their_experiment(
    tmp_path: Path, log: EventLog, clock, ids, fake_world
) -> None:
    moved = MovedClock()
    desk = ForkDesk(tmp_path, log, fake_world.executor(log, clock, ids), moved, ids)
    async with desk.open(keeping=Keeping(drop_payloads_after_s=30 * DAY_S)) as supervisor:
        experiment = await desk.submit(supervisor)
        moved.ahead_s = 29 * DAY_S
        await supervisor.look_at_payloads()
        assert await dropped(log, experiment) == []
        moved.ahead_s = 31 * DAY_S
        for _ in range(2):
            await supervisor.look_at_payloads()
        events = await dropped(log, experiment)
        whole, thin = await experiences(log, experiment)
        assert [(event.reason, event.records) for event in events] == [("age", whole)]
        assert thin == whole > 0
    report = await fake_world.verified(log)
    assert report.clean, report.findings


async def test_payloads_go_by_the_size_of_the_log(
    tmp_path: Path, log: EventLog, clock, ids, fake_world, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = ForkDesk(tmp_path, log, fake_world.executor(log, clock, ids), clock, ids)
    async with desk.open() as supervisor:
        first = await desk.submit(supervisor, "name=first")
        second = await desk.submit(supervisor, "name=second")

    async def used_bytes() -> int:
        """A byte for each payload: those of fake engines are shorter than their digests."""
        counts = [await experiences(log, experiment) for experiment in (first, second)]
        return sum(whole - thin for whole, thin in counts) + 1

    monkeypatch.setattr(log, "used_bytes", used_bytes)
    whole_bytes = await used_bytes()
    async with desk.open(keeping=Keeping(drop_payloads_above_bytes=whole_bytes)) as supervisor:
        await supervisor.look_at_payloads()
        assert await dropped(log, first) == await dropped(log, second) == []
    async with desk.open(keeping=Keeping(drop_payloads_above_bytes=whole_bytes - 1)) as supervisor:
        await supervisor.look_at_payloads()
        assert [event.reason for event in await dropped(log, first)] == ["size"]
        assert supervisor.log_excess_bytes == 0
        assert await dropped(log, second) == [], "what ended first made room enough"
    async with desk.open(keeping=Keeping(drop_payloads_above_bytes=0)) as supervisor:
        await supervisor.look_at_payloads()
        assert [event.reason for event in await dropped(log, second)] == ["size"]
        assert supervisor.log_excess_bytes == 1, "a log without payloads is not empty"
    report = await fake_world.verified(log)
    assert report.clean, report.findings


async def test_neither_age_nor_size_takes_what_runs_or_what_a_fork_needs(
    tmp_path: Path, log: EventLog, clock, ids, fake_world
) -> None:
    moved = MovedClock()
    desk = ForkDesk(tmp_path, log, fake_world.executor(log, clock, ids), moved, ids)
    async with desk.open() as supervisor:
        parent = await desk.submit(supervisor)
    moved.ahead_s = DAY_S
    rules = Keeping(drop_payloads_after_s=0.0, drop_payloads_above_bytes=1)
    async with desk.open(keeping=rules) as supervisor:
        fork = (await desk.fork(supervisor, parent, 7)).experiment
        await supervisor.look_at_payloads()
        assert await dropped(log, parent) == await dropped(log, fork) == []
        await desk.ended(fork)
        await supervisor.look_at_payloads()
        assert [event.reason for event in await dropped(log, parent)] == ["age"]


async def test_what_went_before_the_archive_is_not_said_to_be_back(
    tmp_path: Path, log: EventLog, clock, ids, fake_world
) -> None:
    desk = ForkDesk(tmp_path, log, fake_world.executor(log, clock, ids), clock, ids)
    async with at_work(desk, Keeping(payloads=Keep.UNTIL_ENDED)) as supervisor:
        parent = await desk.submit(supervisor)
        await reported(log, parent, "ended")
        await desk.left()
        await supervisor.archive(parent, to="", request_id=ids.new())
        await supervisor.restore(parent, source="", request_id=ids.new())
        with pytest.raises(ConflictError, match="tokens that sums was trained on up to step 10 were dropped"):
            await desk.fork(supervisor, parent, 7)


async def test_one_without_experiences_can_be_forked_although_its_payloads_went(
    tmp_path: Path, log: EventLog, clock, ids, fake_world
) -> None:
    desk = ForkDesk(tmp_path, log, fake_world.executor(log, clock, ids), clock, ids)
    async with desk.open(keeping=Keeping(payloads=Keep.UNTIL_ENDED)) as supervisor:
        parent = await desk.submit(supervisor, f"stages=[{WARM_UP}]")
        await supervisor.look_at_payloads()
        assert [event.records for event in await dropped(log, parent)] == [0]
        fork = await desk.fork(supervisor, parent, 2)
        await desk.completed(fork.experiment)


async def _tokens(log: EventLog, experiment: UUID) -> None:
    for number in range(topics.TOPICS[topics.EXPERIENCES].partitions):
        for record in await log.read(topics.Partition(topics.EXPERIENCES, number), 0):
            decoded = decode(record)
            if decoded.head.experiment == experiment and isinstance(decoded.event, ExperienceProduced):
                decoded.event.tokens.view()

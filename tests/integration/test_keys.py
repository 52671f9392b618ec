"""Keys of commands: one is done once under its key, anything else under it is refused, and all callers are answered."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from synthetic.daemon.fork_desk import EXPERIMENT, ForkDesk
from synthetic.until import until

from rftd.daemon.config.loading import load_text
from rftd.daemon.run.operations import Done
from rftd.daemon.run.supervisor.inbox import Request
from rftd.daemon.run.supervisor.run import Run
from rftd.daemon.run.supervisor.supervisor import Supervisor
from rftd.ops.errors import ConflictError, NotFoundError, ReusedKeyError
from rftd.ops.ids import derive
from rftd.streams.events.experiment import ExperimentPaused, Fence
from rftd.streams.folds.spine import Status
from rftd.streams.log import topics
from rftd.streams.log.codec import Writer, decode
from rftd.streams.log.log import EventLog
from rftd.streams.log.topics import partition_of
from rftd.streams.log.writers import source_of

pytestmark = pytest.mark.anyio
LONG = "buffer.total_steps=400"


@pytest.fixture
def desk(tmp_path: Path, log: EventLog, clock, ids, fake_world) -> ForkDesk:
    return ForkDesk(tmp_path, log, fake_world.executor(log, clock, ids), clock, ids)


async def under_way(supervisor: Supervisor, experiment: UUID) -> Run:
    """The run, once it trains."""
    await until(lambda: (run := supervisor.runs.of(experiment)) and run.state.spine.status is Status.RUNNING)
    run = supervisor.runs.of(experiment)
    assert isinstance(run, Run)
    return run


async def of_type(log: EventLog, experiment: UUID, kind: type) -> list[UUID]:
    """Ids of the records of a type on the spine."""
    records = await log.read(partition_of(topics.EXPERIMENTS, experiment), 0, max_records=100_000)
    return [each.head.id for each in map(decode, records) if isinstance(each.event, kind)]


async def end(supervisor: Supervisor, ids: Any, *experiments: UUID) -> None:
    for each in experiments:
        await supervisor.cancel(each, reason="", request_id=ids.new())


async def test_a_key_that_paused_does_not_resume(desk: ForkDesk, ids, fake_world) -> None:
    key = ids.new()
    async with desk.open() as supervisor:
        experiment = await desk.hand_in(supervisor, LONG)
        run = await under_way(supervisor, experiment)
        paused = await supervisor.pause(experiment, reason="a", request_id=key)
        assert run.state.spine.status is Status.PAUSED
        assert await supervisor.pause(experiment, reason="a", request_id=key) == paused
        with pytest.raises(ReusedKeyError, match=rf"this key was used to pause {experiment} at 20\d\d-") as refused:
            await supervisor.resume(experiment, reason="a", request_id=key)
        assert refused.value.field == "Idempotency-Key"
        assert run.state.spine.status is Status.PAUSED
        with pytest.raises(ReusedKeyError, match="with another body"):
            await supervisor.pause(experiment, reason="b", request_id=key)
        await supervisor.resume(experiment, reason="a", request_id=ids.new())
        await until(lambda: run.state.spine.status is Status.RUNNING)
        # Done long ago: the same answer, and nothing more.
        assert await supervisor.pause(experiment, reason="a", request_id=key) == paused
        assert run.state.spine.status is Status.RUNNING
        await end(supervisor, ids, experiment)
    assert len(await of_type(desk.log, experiment, ExperimentPaused)) == 1
    assert (await fake_world.verified(desk.log)).clean


async def test_a_key_makes_one_experiment(desk: ForkDesk, ids, fake_world) -> None:
    key = ids.new()
    one, two = (
        load_text(EXPERIMENT, "test.yaml", overrides=[LONG, f"name={name}"], environ={}, cwd=desk.folder).config
        for name in ("one", "two")
    )
    async with desk.open() as supervisor:
        first = await supervisor.submit(one, request_id=key)
        for wanted in (supervisor.submit(two, request_id=key), supervisor.submit(one | {"seed": 5}, request_id=key)):
            with pytest.raises(ReusedKeyError, match=f"this key was used to submit {first.experiment}"):
                await wanted
        with pytest.raises(ReusedKeyError, match="used to submit"):
            await supervisor.cancel(first.experiment, reason="", request_id=key)
        (desk.folder / "train.jsonl").rename(desk.folder / "moved.jsonl")  # what was taken in is not looked at again
        assert await supervisor.submit(one, request_id=key) == first
        (desk.folder / "moved.jsonl").rename(desk.folder / "train.jsonl")
    async with desk.open() as another:
        assert await another.submit(one, request_id=key) == first
        with pytest.raises(ReusedKeyError, match="used to submit"):
            await another.submit(two, request_id=key)
        assert {entry.name for entry in another._registry.entries.values()} == {"one"}
        await end(another, ids, first.experiment)
    assert (await fake_world.verified(desk.log)).clean


async def test_a_key_makes_one_fork_and_keeps_one_set_of_files(desk: ForkDesk, ids) -> None:
    key, archived = ids.new(), ids.new()
    async with desk.open() as supervisor:
        parent = await desk.submit(supervisor)
        fork = await desk.fork(supervisor, parent, 9, request_id=key)
        with pytest.raises(ReusedKeyError, match=f"this key was used to fork {fork.experiment}"):
            await desk.fork(supervisor, parent, 8, request_id=key)
        await desk.completed(fork.experiment)
        done = await supervisor.archive(parent, to="", request_id=archived)
        assert await supervisor.archive(parent, to="", request_id=archived) == done
        for wanted in (
            supervisor.restore(parent, source="", request_id=archived),
            supervisor.remove(parent, reason="", archive=False, request_id=archived),
            supervisor.archive(fork.experiment, to="", request_id=archived),
        ):
            with pytest.raises(ReusedKeyError, match=f"this key was used to archive {parent}"):
                await wanted
        await supervisor.restore(parent, source="", request_id=ids.new())
        assert await supervisor.archive(parent, to="", request_id=archived) == done, "it was archived then"


async def test_what_a_fence_made_void_is_done_again_and_its_caller_hears(desk: ForkDesk, ids, clock) -> None:
    key = ids.new()
    async with desk.open() as supervisor:
        experiment = await desk.hand_in(supervisor, LONG)
        run = await under_way(supervisor, experiment)
        append, spine = desk.log.append, partition_of(topics.EXPERIMENTS, experiment)
        owner = ids.new()
        rival = Writer(source=source_of("daemon", owner), clock=clock, ids=ids, role="controller", epoch=2)

        async def beaten(drafts: Any) -> Any:
            """A rival's fence comes in just before the pause."""
            if any(draft.head.find(b"experiment.paused") >= 0 for draft in drafts):
                desk.log.append = append  # type: ignore[method-assign]
                fence = Fence(role="controller", epoch=2, previous=1, owner=owner)
                await append([rival.draft(fence, experiment=experiment, partition=spine)])
            return await append(drafts)

        desk.log.append = beaten  # type: ignore[method-assign]
        async with asyncio.timeout(30):
            done = await supervisor.pause(experiment, reason="a", request_id=key)
            assert await supervisor.pause(experiment, reason="a", request_id=key) == done
        void, effective = await of_type(desk.log, experiment, ExperimentPaused)
        assert void != effective == done.event
        assert supervisor._registry.entries[experiment].status is Status.PAUSED
        assert run is not supervisor.runs.of(experiment), "it was fenced"
        await end(supervisor, ids, experiment)


async def test_callers_at_once_get_one_answer(desk: ForkDesk, ids) -> None:
    key = ids.new()
    async with desk.open() as supervisor:
        experiment = await desk.hand_in(supervisor, LONG)
        await under_way(supervisor, experiment)
        same = [supervisor.pause(experiment, reason="a", request_id=key) for _ in range(4)]
        other = supervisor.cancel(experiment, reason="a", request_id=key)
        *answers, refused = await asyncio.gather(*same, other, return_exceptions=True)
        assert len(set(answers)) == 1
        assert isinstance(answers[0], Done)
        assert isinstance(refused, ReusedKeyError)
        assert "this key is in use to pause" in refused.what
        with pytest.raises(NotFoundError):
            await supervisor.pause(ids.new(), reason="", request_id=ids.new())
        await end(supervisor, ids, experiment)


async def test_whoever_asks_a_run_that_ends_or_hangs_up_is_no_harm(desk: ForkDesk, ids) -> None:
    async with desk.open() as supervisor:
        experiment = await desk.hand_in(supervisor, LONG)
        run = await under_way(supervisor, experiment)
        asking = asyncio.ensure_future(run.command(ExperimentPaused(), Request(ids.new())))
        await asyncio.sleep(0)  # it asks, and waits for the answer, in its first turn of the loop
        asking.cancel()  # a client whose time is over
        asked = [supervisor.cancel(experiment, reason="", request_id=derive(experiment, n)) for n in range(3)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert sum(isinstance(each, Done) for each in answers) == 1
        assert all(isinstance(each, Done | ConflictError) for each in answers), answers
        await run.gone()
        with pytest.raises(ConflictError, match="cancelled"):
            await run.command(ExperimentPaused(), Request(ids.new()))

"""Keys of requests that add tasks: none is forgotten, each costs few bytes, and a queue takes a number of them."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest
from synthetic.daemon.fork_desk import ForkDesk
from synthetic.daemon.scene import QUEUE
from synthetic.log.recorder import Recorder
from synthetic.until import until

from rftd.daemon.run.supervisor.supervisor import Supervisor
from rftd.ops import limits
from rftd.ops.errors import ConflictError, ReusedKeyError
from rftd.ops.ids import derive
from rftd.streams.events.task import TasksAdded
from rftd.streams.folds import commands
from rftd.streams.folds.commands import Commands
from rftd.streams.folds.pieces import from_pieces, pieces_of
from rftd.streams.folds.spine import Status
from rftd.streams.log.codec import Writer, decode
from rftd.streams.log.effective import Ruling
from rftd.streams.log.log import EventLog

MANY = 5_000
FULL = 40


def of_requests(count: int) -> tuple[Commands, Recorder]:
    """The fold of as many requests, each with a task."""
    recorder = Recorder()
    fold = Commands()
    experiment = recorder.ids.new()
    writer = Writer(source="daemon/1", clock=recorder.clock, ids=recorder.ids, role="controller", epoch=1)
    for number in range(count):
        event = TasksAdded(stage=0, tasks=(str(number),))
        recorder.put(writer.draft(event, experiment=experiment, correlation=derive(experiment, number)))
        fold.take(Ruling(decode(recorder.records[-1]), True))
    return fold, recorder


def test_every_key_is_known_however_many_came_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "UNPACKED", 8)
    fold, recorder = of_requests(100)
    again = from_pieces(pieces_of(fold), Commands)
    assert again == fold
    for number, decoded in enumerate(map(decode, recorder.records)):
        key = decoded.head.correlation
        assert key is not None
        for known in (fold, again):
            (use,) = known.of(key)
            assert known.at(decoded.head.id, key) == use
            assert (use.event, use.position.offset, use.time_ns) == (decoded.head.id, number, decoded.head.time_ns)
            assert (use.verb, use.experiment, use.effective) == ("add tasks", decoded.head.experiment, True)
            assert known.at(key, key) is None
    assert fold.of(derive(recorder.ids.new(), "another")) == []


def test_a_key_costs_few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "UNPACKED", 64)
    fold, _ = of_requests(MANY)
    tracemalloc.start()
    try:
        copied = from_pieces(pieces_of(fold), Commands)
        size_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert copied == fold
    assert size_bytes < MANY * 120


@pytest.mark.anyio
async def test_a_full_queue_refuses_new_requests_and_answers_old_ones(
    tmp_path: Path, log: EventLog, clock, ids, fake_world, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "UNPACKED", 4)
    monkeypatch.setattr(limits, "TASK_REQUESTS", FULL)
    desk = ForkDesk(tmp_path, log, fake_world.executor(log, clock, ids), clock, ids)
    keys = [ids.new() for _ in range(FULL)]
    tasks = [[json.dumps({"question": f"{number}+1=", "answer": str(number + 1)})] for number in range(FULL)]

    async def under_way(supervisor: Supervisor) -> None:
        await until(
            lambda: (run := supervisor.runs.of(experiment)) is not None and run.state.spine.status is Status.RUNNING
        )

    async with desk.open() as supervisor:
        experiment = await desk.hand_in(supervisor, *QUEUE, "deterministic=false")
        await under_way(supervisor)
        done = [
            await supervisor.add_tasks(experiment, row, request_id=key) for key, row in zip(keys, tasks, strict=True)
        ]
    async with desk.open() as supervisor:
        await under_way(supervisor)
        with pytest.raises(ConflictError, match="40 requests have added tasks, the limit"):
            await supervisor.add_tasks(experiment, tasks[0], request_id=ids.new())
        for key, row, before in zip(keys, tasks, done, strict=True):
            assert await supervisor.add_tasks(experiment, row, request_id=key) == before
        with pytest.raises(ReusedKeyError, match="with another body"):
            await supervisor.add_tasks(experiment, tasks[1], request_id=keys[0])
        run = supervisor.runs.of(experiment)
        assert run is not None
        queue = run.state.spine.queues.of(0)
        assert (queue.rows, queue.requests) == (FULL, FULL)
        await supervisor.cancel(experiment, reason="", request_id=ids.new())
    assert (await fake_world.verified(log)).clean

"""Tasks that are added while the experiment runs, each request more than once, and whose end is told."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from rftd.ops.ids import derive
from rftd.streams.events.task import TasksAdded
from rftd.streams.log import topics
from rftd.streams.log.bounds import LAST_INDEX
from rftd.streams.log.codec import decode
from rftd.streams.log.topics import partition_of
from simulator.kinds.cut_logs import CutLogs
from simulator.kinds.kind import Kind

if TYPE_CHECKING:
    from simulator.scenario import Scenario
    from simulator.world import World


CHECKED_S = 20.0
"""The time between two looks of whoever adds tasks, in a world whose log may be cut."""


def added_once(world: World) -> Iterator[str]:
    """Every task that was acknowledged is in the log, each once, and all of them were given out."""
    if Queued.name not in world.scenario.extras:
        return
    spine = partition_of(topics.EXPERIMENTS, world.experiment)
    events = [decode(record) for record in world.log.stored(spine, 0, 1 << 30)]
    seen = {event.head.id: event.event for event in events if isinstance(event.event, TasksAdded)}
    counts = Counter(text for event in seen.values() for text in event.tasks if _stands(world, event))
    acknowledged = world.scenario.extras[Queued.name]["acknowledged"]
    lost = [text for text in acknowledged if not counts[text]]
    # A log that was cut while everything was down has lost them, and its owner has accepted that.
    if lost and CutLogs.name not in world.scenario.extras:
        yield f"{len(lost)} tasks were acknowledged and are not in the log: {lost[:2]}"
    if twice := [text for text, count in counts.items() if count > 1]:
        yield f"{len(twice)} tasks were added twice: {twice[:2]}"
    queue = next(iter(world.state.spine.queues.by_stage.values()), None)
    if queue is not None and queue.rows != sum(counts.values()):
        yield f"the queue has {queue.rows} tasks, and {sum(counts.values())} were added"


def _stands(world: World, event: TasksAdded) -> bool:
    """False for what a fence made void: the queue never counted it."""
    queue = world.state.spine.queues.of(event.stage)
    spine = partition_of(topics.EXPERIMENTS, world.experiment)
    return any(event == decode(world.log.stored(spine, offset, 1)[0]).event for offset in queue.offsets)


class Queued(Kind):
    """The tasks of a world's last stage come while daemons die; whoever adds them asks again and again."""

    name: ClassVar[str] = "queued"
    share: ClassVar[float] = 0.15
    modes: ClassVar[tuple[str, ...]] = ("swarm", "zombies")
    oracles = (added_once,)

    def draw(self, scenario: Scenario, chance: random.Random) -> Any:
        """The sizes of the requests and the pauses before them; none beside a fork, which shares no queue."""
        shape = scenario.shape
        if scenario.fork_at_s is not None or shape.serves or shape.deterministic:
            return None
        tasks = max(1, shape.steps * shape.groups - chance.randint(0, 2 * shape.groups))
        requests: list[tuple[float, int]] = []
        while tasks > 0:
            size = min(tasks, chance.randint(1, 2 * shape.groups))
            requests.append((chance.uniform(0.0, 1.5), size))
            tasks -= size
        return {"requests": requests, "repeats": chance.random() < 0.5, "acknowledged": []}

    def around(self, world: World, plot: Any) -> AbstractContextManager[Any]:
        """Makes the taskset of the world's last stage a queue."""
        *before, stage = world.spec.stages
        assert stage.taskset is not None
        queue = msgspec.structs.replace(
            stage.taskset, path="", digest="", rows=LAST_INDEX, queue=True, selector="sequential"
        )
        stage = msgspec.structs.replace(stage, taskset=queue, more_tasksets=(), max_read_timeout_s=1e9)
        world.spec = msgspec.structs.replace(world.spec, stages=(*before, stage))
        return nullcontext()

    def begin(self, world: World, plot: Any) -> None:
        """Spawns whoever adds the tasks."""
        world.process.spawn(self._add(world, plot))

    async def _add(self, world: World, plot: Any) -> None:
        pauses_s = [pause_s for pause_s, _ in plot["requests"]]
        await self._add_all(world, plot, pauses_s)
        # A log that was cut has lost what it took: who adds tasks looks whether they are there, and adds them again.
        while CutLogs.name in world.scenario.extras and not world.over(world.state):
            await asyncio.sleep(CHECKED_S)
            world.observe()
            if not _complete(world, plot):
                await self._add_all(world, plot, [0.0] * len(pauses_s))

    async def _add_all(self, world: World, plot: Any, pauses_s: Sequence[float]) -> None:
        number = 0
        for index, (pause_s, (_, size)) in enumerate(zip(pauses_s, plot["requests"], strict=True)):
            await asyncio.sleep(pause_s)
            tasks = [_task(row) for row in range(number, number + size)]
            number += size
            request = derive(world.experiment, self.name, index)
            for _ in range(1 + plot["repeats"]):
                if await self._asked(world, "ADD", "add_tasks", tasks=tasks, request_id=request):
                    plot["acknowledged"] += tasks
                    world.chaos.hits[self.name] += 1
            plot["acknowledged"] = list(dict.fromkeys(plot["acknowledged"]))
        await self._asked(world, "END", "end_tasks", reason="no more", request_id=derive(world.experiment, "end"))

    async def _asked(self, world: World, what: str, verb: str, **body: Any) -> bool:
        """True once it is done; a run that has ended meanwhile, or was cancelled, takes no tasks."""
        while not world.over(world.state):
            done = await world.owner._ask(
                f"{what} TASKS", lambda daemon: getattr(daemon, verb)(world.experiment, **body), times=5
            )
            if done:
                return True
            world.observe()
            if what == "END" and CutLogs.name in world.scenario.extras:
                return False  # the tasks may be gone: they are looked at, and added, first
        return False


def _complete(world: World, plot: Any) -> bool:
    """True if the log has every task and the end."""
    queue = next(iter(world.state.spine.queues.by_stage.values()), None)
    return queue is not None and queue.ended and queue.rows == sum(size for _, size in plot["requests"])


def _task(row: int) -> str:
    return json.dumps({"question": f"{row}+{row % 7}=", "answer": str(row + row % 7)})

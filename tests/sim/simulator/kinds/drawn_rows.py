"""Tasksets whose rows a selector draws, by their columns or by rewards, while daemons die."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import numpy as np

from rftd.streams.events.task import GroupClosed, TasksDrawn
from rftd.streams.log import topics
from rftd.streams.log.effective import effective, of_experiment
from rftd.streams.log.envelope import Decoded
from rftd.streams.log.fencing import FenceView
from rftd.streams.log.topics import partition_of
from rftd.streams.spec.spec import TasksetSpec
from rftd.streams.spec.stage_tasks import draw_size
from rftd.workers.control.selectors.registry import follows_rewards, make_selector
from rftd.workers.control.selectors.selector import ClosedRewards, DrawView
from rftd.workers.datasets.taskset import Taskset
from simulator.kinds.kind import Kind
from simulator.kinds.queued import Queued

if TYPE_CHECKING:
    from simulator.scenario import Scenario
    from simulator.world import World

_KEYS = ("weak", "strong")


def drawn_from_rewards(world: World) -> Iterator[str]:
    """Each draw is what its selector makes of the rewards in the log that it says it saw, whoever decided it."""
    if DrawnRows.name not in world.scenario.extras:
        return
    closes: dict[tuple[int, int], list[tuple[int, float]]] = {}
    seen: set[Any] = set()
    for decoded in decisions_of(world, topics.TASKS):
        event = decoded.event
        if isinstance(event, GroupClosed) and event.row >= 0 and event.members and event.group not in seen:
            value = sum(member.reward for member in event.members) / len(event.members)
            closes.setdefault((event.stage, event.taskset), []).append((event.row, value))
            seen.add(event.group)
    reached: dict[tuple[int, int], int] = {}
    for decoded in decisions_of(world, topics.EXPERIMENTS):
        event = decoded.event
        if not isinstance(event, TasksDrawn):
            continue
        key = (event.stage, event.taskset)
        if event.first < reached.get(key, 0):
            continue
        reached[key] = event.first + len(event.rows)
        known = closes.get(key, [])
        if event.seen > len(known):
            yield f"the draw at {event.first} saw {event.seen} groups, and {len(known)} closed"
            continue
        expected = _draw(world, event, known[: event.seen])
        if event.rows != expected:
            yield f"the draw at {event.first} is {event.rows}, and of {event.seen} groups follows {expected}"


def decisions_of(world: World, stream: str) -> Iterator[Decoded]:
    fences = FenceView()
    for record in world.log.stored(partition_of(stream, world.experiment), 0, 1 << 30):
        decoded = effective(record, fences, of_experiment(world.experiment))
        if decoded is not None:
            yield decoded


def _draw(world: World, event: TasksDrawn, closed: list[tuple[int, float]]) -> tuple[int, ...]:
    """The rows that a selector draws which was made for this draw alone."""
    spec = world.state.spine.spec
    assert spec is not None
    stage = spec.stages[event.stage]
    taskset = stage.taskset
    assert taskset is not None
    rows = np.array([row for row, _ in closed], np.int64)
    values = np.array([value for _, value in closed])
    view = DrawView(
        first=event.first,
        size=draw_size(stage, taskset),
        rows=taskset.rows,
        seed=taskset.seed,
        columns=np.array([[row[key] for key in _KEYS] for row in _rows(taskset.rows)]),
        rewards=ClosedRewards(len(closed), rows, values),
    )
    return tuple(make_selector(taskset).draw(view))


class DrawnRows(Kind):
    """Explores rows in the order of their columns, or those that the model nearly manages."""

    name: ClassVar[str] = "drawn rows"
    share: ClassVar[float] = 0.2
    modes: ClassVar[tuple[str, ...]] = ("swarm", "zombies")
    oracles = (drawn_from_rewards,)

    def draw(self, scenario: Scenario, chance: random.Random) -> Any:
        """The selector with its arguments; none of a queue, which has an order of its own."""
        if Queued.name in scenario.extras or scenario.shape.serves:
            return None
        if scenario.shape.deterministic or chance.random() < 0.3:
            return "offline_easy2hard", {}
        arguments = {
            "tau": chance.choice((0.0, 0.1, 1.0)),
            "target_reward": chance.choice((0.5, 1.0)),
            "do_sample": chance.random() < 0.5,
        }
        return "difficulty_based", arguments

    def around(self, world: World, plot: Any) -> AbstractContextManager[Any]:
        """Gives each stage that explores another file, with columns, and the selector."""
        selector, arguments = plot
        world.chaos.hits[self.name] += 1
        stages = [
            stage
            if stage.taskset is None
            else msgspec.structs.replace(stage, taskset=_with_columns(stage.taskset, selector, arguments))
            for stage in world.spec.stages
        ]
        world.spec = msgspec.structs.replace(world.spec, stages=tuple(stages))
        return nullcontext()


def _with_columns(taskset: TasksetSpec, selector: str, arguments: dict[str, Any]) -> TasksetSpec:
    path = Path(taskset.path).with_name(f"columns-{taskset.rows}.jsonl")
    if not path.exists():
        path.write_text("".join(json.dumps(row) + "\n" for row in _rows(taskset.rows)))
    chosen = msgspec.structs.replace(
        taskset,
        path=str(path),
        selector=selector,
        selector_args=arguments,
        feature_keys=_KEYS,
        follows_rewards=follows_rewards(selector),
    )
    with Taskset.open(chosen) as opened:
        return msgspec.structs.replace(chosen, digest=opened.digest)


def _rows(rows: int) -> list[dict[str, Any]]:
    return [
        {
            "question": f"{number}+{number % 7}=",
            "answer": str(number + number % 7),
            "weak": number % 5 / 10,
            "strong": number % 5 / 10 + number % 3 / 10,
        }
        for number in range(rows)
    ]

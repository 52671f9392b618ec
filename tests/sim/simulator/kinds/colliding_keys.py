"""Keys that collide: one key for several commands, the same command again and again; every answer must be true."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from uuid import UUID

from rftd.daemon.run.operations import Done
from rftd.ops.errors import ConflictError
from rftd.ops.ids import derive
from rftd.streams.folds.key_use import VERBS
from rftd.streams.log import topics
from rftd.streams.log.codec import decode
from rftd.streams.log.envelope import Decoded
from rftd.streams.log.fencing import FenceView
from rftd.streams.log.topics import partition_of
from simulator.kinds.kind import Kind

if TYPE_CHECKING:
    from simulator.scenario import Scenario
    from simulator.world import World

ANSWER_S = 8.0
"""How long a caller waits before it asks again."""
PATIENCE_S = 120.0
"""Whoever has asked for so long, and of a daemon that answers, has to be answered."""


class Ask(NamedTuple):
    """One caller's wish."""

    at_s: float
    key: int
    verb: str
    reason: str


@dataclass
class Plot:
    """What is asked, and what was answered."""

    asks: list[Ask]
    answers: dict[int, Done | ConflictError] = field(default_factory=dict)
    """By the place in `asks`."""


def answers_are_true(world: World) -> Iterator[str]:
    """Every command got an answer; what was done is in the log and in effect, once for its key; so are refusals."""
    plot: Plot | None = world.scenario.extras.get(CollidingKeys.name)
    if plot is None:
        return
    found: dict[UUID, Decoded] = {}
    first: dict[UUID, Decoded] = {}
    keys = {_key(world, ask.key) for ask in plot.asks}
    fences = FenceView()
    spine = partition_of(topics.EXPERIMENTS, world.experiment)
    for record in world.log.stored(spine, 0, 1 << 30):
        decoded = decode(record)
        if not fences.admit(spine, decoded.head, decoded.event) or decoded.head.id in found:
            continue
        found[decoded.head.id] = decoded
        key = decoded.head.correlation
        if decoded.head.type in VERBS and key in keys:
            if key in first:
                yield f"key {key} did two things: {first[key].head.type} and {decoded.head.type}"
            first.setdefault(key, decoded)
    for number, ask in enumerate(plot.asks):
        key = _key(world, ask.key)
        answer, done = plot.answers.get(number), first.get(key)
        if answer is None:
            if world.loop.time() - ask.at_s > PATIENCE_S:
                yield f"{ask} got no answer"
        elif isinstance(answer, Done):
            decoded = found.get(answer.event)
            if decoded is None:
                yield f"{ask} was answered with {answer.event}, which is not in effect"
            elif (VERBS.get(decoded.head.type), decoded.event.reason) != (ask.verb, ask.reason):  # type: ignore[attr-defined]
                yield f"{ask} was answered with {decoded.head.type}, {decoded.event}"
        elif "this key was used" in answer.what and (
            done is None or f"used to {VERBS[done.head.type]} " not in answer.what
        ):
            yield f"{ask} was refused: {answer.what}"


class CollidingKeys(Kind):
    """Callers who pause, resume and prioritize, with few keys among them."""

    name: ClassVar[str] = "colliding keys"
    share: ClassVar[float] = 0.15
    modes: ClassVar[tuple[str, ...]] = ("swarm", "zombies")
    oracles: ClassVar[Any] = (answers_are_true,)

    def draw(self, scenario: Scenario, chance: random.Random) -> Plot:
        """Who asks for what, when and under which key."""
        verbs = ("pause", "pause", "resume", "prioritize")
        return Plot(
            [
                Ask(
                    at_s=chance.uniform(0.2, min(scenario.calm_s, 20.0)),
                    key=chance.randrange(3),
                    verb=chance.choice(verbs),
                    reason=chance.choice("aab"),
                )
                for _ in range(chance.randint(4, 9))
            ]
        )

    def begin(self, world: World, plot: Any) -> None:
        """Everybody asks until they have an answer. What stays paused is resumed by the world."""
        for number in range(len(plot.asks)):
            world.process.spawn(self._ask(world, plot, number))

    async def _ask(self, world: World, plot: Plot, number: int) -> None:
        ask = plot.asks[number]
        await asyncio.sleep(ask.at_s)
        more: dict[str, Any] = {"priority": 3} if ask.verb == "prioritize" else {}
        answer = await _answered(world, ask.verb, reason=ask.reason, request_id=_key(world, ask.key), **more)
        plot.answers[number] = answer
        world.chaos.hits[self.name] += 1
        world.tell(f"KEY {ask.key} {ask.verb} {ask.reason}: {answer}")


def _key(world: World, number: int) -> UUID:
    return derive(world.experiment, "colliding", number)


async def _answered(world: World, verb: str, **more: Any) -> Done | ConflictError:
    """The answer of whichever daemon gives one; asked again, with the same key, until there is one."""
    while True:
        daemons = [each for each in world.machine.daemons if each.running]
        if daemons:
            supervisor = world.machine.daemons[daemons[-1]]
            asked = daemons[-1].spawn(getattr(supervisor, verb)(world.experiment, **more))
            await asyncio.wait({asked}, timeout=ANSWER_S)
            if asked.done() and not asked.cancelled():
                error = asked.exception()
                if error is None:
                    done: Done = asked.result()
                    return done
                if isinstance(error, ConflictError):
                    return error
        await asyncio.sleep(1.0)

"""Experience pipelines whose operators drop, change and mask, and fail for some groups, while explorers die."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar
from unittest import mock

import msgspec

from rftd.ops.errors import PipelineError
from rftd.streams.events.batch import BatchPlanned
from rftd.streams.events.experience import ExperienceProduced
from rftd.streams.events.task import GroupClosed
from rftd.streams.log import topics
from rftd.streams.log.codec import decode_as
from rftd.streams.log.topics import Partition
from rftd.streams.spec.stage_parts import OperatorSpec
from rftd.workers.pipelines.operator import PipelineExperience
from rftd.workers.pipelines.pipeline import OperatorChain
from rftd.workers.pipelines.registry import OPERATORS
from simulator.kinds.drawn_rows import decisions_of
from simulator.kinds.kind import Kind

if TYPE_CHECKING:
    from simulator.scenario import Scenario
    from simulator.world import World

OWN = {"sim_sieve": "simulator.kinds.piped:Sieve"}


class Sieve:
    """Drops one of `of` experiences by its id, and fails for one of `fails` groups."""

    def __init__(self, of: int, fails: int) -> None:
        self._of = of
        self._fails = fails

    def process(
        self, experiences: Sequence[PipelineExperience]
    ) -> tuple[Sequence[PipelineExperience], Mapping[str, float]]:
        """Decides by ids alone, so that another explorer answers the same."""
        if experiences and self._fails and experiences[0].produced.group.int % self._fails == 0:
            raise ValueError("this group does not pass")
        return [each for each in experiences if each.produced.experience.int % self._of], {"seen": len(experiences)}


def judged_by_its_pipeline(world: World) -> Iterator[str]:
    """Each close has the verdicts that the operators make of its members, and no dropped member is planned."""
    if Piped.name not in world.scenario.extras:
        return
    dropped = set()
    seen = set()
    for decoded in decisions_of(world, topics.TASKS):
        event = decoded.event
        if not isinstance(event, GroupClosed) or event.group in seen:
            continue
        seen.add(event.group)
        stage = world.spec.stages[event.stage]
        if not event.verdicts or not stage.pipeline:
            continue
        dropped |= {
            member.experience
            for member, verdict in zip(event.members, event.verdicts, strict=True)
            if verdict.dropped_by >= 0
        }
        try:
            verdicts = OperatorChain(stage.pipeline).judge([_produced(world, member) for member in event.members])
        except PipelineError as error:
            yield f"group {event.group} closed with verdicts, and {error.what}"
            continue
        if verdicts.verdicts != event.verdicts:
            yield f"group {event.group} closed with {event.verdicts}, and the operators say {verdicts.verdicts}"
    for decoded in decisions_of(world, topics.EXPERIMENTS):
        if isinstance(event := decoded.event, BatchPlanned):
            planned = {item.experience for item in event.experiences}
            if planned & dropped:
                yield f"step {event.step} is planned with experiences that its pipeline dropped"


def _produced(world: World, member: Any) -> ExperienceProduced:
    partition = Partition(topics.EXPERIENCES, member.partition)
    [record] = world.log.stored(partition, member.offset, 1)
    return decode_as(record, ExperienceProduced)


class Piped(Kind):
    """A pipeline of several operators between the explorers and the buffer."""

    name: ClassVar[str] = "piped"
    share: ClassVar[float] = 1.0
    modes: ClassVar[tuple[str, ...]] = ("piped",)
    oracles = (judged_by_its_pipeline,)

    def draw(self, scenario: Scenario, chance: random.Random) -> Any:
        """Operators in some order; a stage whose groups may all be too small would never end."""
        scenario.shape = msgspec.structs.replace(scenario.shape, over_keep_partial=False)
        shaping = {"reward_shaping_configs": [{"stats_key": "reward", "op_type": "ADD", "weight": 0.5}]}
        operators = [
            OperatorSpec(name="reward_shaping_mapper", args=shaping),
            OperatorSpec(name="mask_response_truncated"),
            OperatorSpec(name="pass_rate_calculator"),
            OperatorSpec(name="reward_filter", args={"threshold": -1.0}),
            OperatorSpec(name="sim_sieve", args={"of": chance.choice([3, 5]), "fails": chance.choice([0, 7])}),
        ]
        chance.shuffle(operators)
        return tuple(operators[: chance.randint(1, len(operators))])

    def around(self, world: World, plot: Any) -> AbstractContextManager[Any]:
        """Gives each stage that explores the operators."""
        world.chaos.hits[self.name] += 1
        stages = [
            stage if stage.taskset is None else msgspec.structs.replace(stage, pipeline=plot)
            for stage in world.spec.stages
        ]
        world.spec = msgspec.structs.replace(world.spec, stages=tuple(stages))
        return mock.patch.dict(OPERATORS._table, OWN)

"""`GroupProcessing`: runs the experience pipeline of a stage on leased groups, and hands over the verdicts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from rftd.ops.errors import ConfigError, LogLossError, PipelineError
from rftd.ops.ids import derive
from rftd.ops.logs import Logger
from rftd.storage.files.artifacts import ArtifactStore
from rftd.streams.events.experience import ExperienceProduced, GroupProcessed
from rftd.streams.events.task import GroupLeased, Member
from rftd.streams.log import topics
from rftd.streams.log.codec import decode_as
from rftd.streams.log.envelope import Record
from rftd.streams.log.topics import Partition, partition_of
from rftd.streams.spec.spec import StageSpec
from rftd.workers.datasets.tokenizer import Tokenizer
from rftd.workers.generation.auxiliary.rollout_models import AuxiliaryModels, RolloutModels
from rftd.workers.hosts.membership import Membership
from rftd.workers.pipelines.operator import GroupContext
from rftd.workers.pipelines.pipeline import NO_CONTEXT, OperatorChain
from rftd.workers.rollout.outbox import Outbox
from rftd.workers.rollout.rollout_log import REASON_CHARS

_RECORDS_PER_READ: Final = 64
"""Maximum number of records in one read, for the members of a group among those of others."""


class GroupProcessing:
    """The experience pipelines of an experiment's stages, one group at a time on a thread."""

    def __init__(self, member: Membership, outbox: Outbox, artifacts: ArtifactStore, log: Logger) -> None:
        """Large arrays of experiences are read from `artifacts`; verdicts go to `outbox`."""
        self._member = member
        self._outbox = outbox
        self._artifacts = artifacts
        self._log = log
        self._pipelines: dict[int, OperatorChain] = {}
        """Operators of each stage with a pipeline, by index."""
        self._stages: Sequence[StageSpec] = ()
        self._auxiliary: AuxiliaryModels | None = None
        self._tokenizer: Tokenizer | None = None
        self._turn = asyncio.Lock()
        """Operators of third parties need not be safe on several threads at once."""

    def open(self, stages: Sequence[StageSpec]) -> None:
        """Opens the operators of all stages. Raises ConfigError for an unknown operator or invalid arguments."""
        self._stages = stages
        self._pipelines = {index: OperatorChain(stage.pipeline) for index, stage in enumerate(stages) if stage.pipeline}

    def serve(self, auxiliary: AuxiliaryModels, tokenizer: Tokenizer) -> None:
        """Gives operators the models to ask, and the tokenizer of the answers to show."""
        self._auxiliary = auxiliary
        self._tokenizer = tokenizer

    async def run(self, lease: GroupLeased) -> None:
        """Runs the pipeline on a leased group, and puts the verdicts into the outbox.

        A failing operator is a verdict too: the dispatcher closes the group with the reason.
        """
        pipeline = self._pipelines.get(lease.stage)
        if pipeline is None:
            raise ConfigError(f"stage {lease.stage} has no experience pipeline", fix="start this worker again")
        members = await self._experiences(lease.members)
        async with self._turn:
            answer = await self._judge_or_reason(lease, pipeline, members)
        draft = self._member.writer.draft(
            answer,
            experiment=self._member.experiment,
            partition=partition_of(topics.EXPERIENCES, lease.group),
            causation=lease.lease,
            correlation=lease.group,
        )
        await self._outbox.put([draft])

    async def _judge_or_reason(
        self, lease: GroupLeased, pipeline: OperatorChain, members: Sequence[ExperienceProduced]
    ) -> GroupProcessed:
        """Returns the verdicts on the members, or the reason of a failure."""
        rollouts = tuple(member.rollout for member in lease.members)
        reason = ""
        models = self._models(lease)
        context = GroupContext(models.models, self._tokenizer.decode) if self._tokenizer is not None else NO_CONTEXT
        try:
            async with asyncio.timeout(lease.deadline_s):
                verdicts, metrics = await asyncio.to_thread(pipeline.judge, members, context)
        except PipelineError as error:
            reason = error.what
        except TimeoutError:
            reason = f"the operators took more than {lease.deadline_s:g} s"
        if reason:
            self._log.warning("pipeline.failed", group=str(lease.group), reason=reason[:REASON_CHARS])
            return GroupProcessed(
                group=lease.group, lease=lease.lease, stage=lease.stage, rollouts=rollouts, reason=reason
            )
        return GroupProcessed(
            group=lease.group,
            lease=lease.lease,
            stage=lease.stage,
            rollouts=rollouts,
            verdicts=verdicts,
            metrics=metrics,
            auxiliary=models.turns,
        )

    def _models(self, lease: GroupLeased) -> RolloutModels:
        """Returns the auxiliary models for one group, with seeds derived from the group alone."""
        if self._auxiliary is None:
            return RolloutModels()
        own = derive(lease.group, "pipeline")
        return self._auxiliary.of(self._stages[lease.stage], own, own)

    async def _experiences(self, members: Sequence[Member]) -> list[ExperienceProduced]:
        """Returns the members' experiences with all arrays. Raises LogLossError for a missing record."""
        records: dict[tuple[int, int], Record] = {}
        for number in sorted({member.partition for member in members}):
            partition = Partition(topics.EXPERIENCES, number)
            pending = sorted(member.offset for member in members if member.partition == number)
            while pending:
                first = pending[0]
                # Records of other groups come along: one read costs more than a few of them.
                count = min(pending[-1] - first + 1, _RECORDS_PER_READ)
                for record in await self._member.log.read(partition, first, max_records=count):
                    records[number, record.offset] = record
                pending = [offset for offset in pending if (number, offset) not in records]
                if pending and pending[0] == first:
                    where = f"{partition}@{first}"
                    fix = "run rftd verify on the log"
                    raise LogLossError("a record of a leased group is missing", where=where, fix=fix)
        events = [decode_as(records[member.partition, member.offset], ExperienceProduced) for member in members]
        if any(event.tokens.artifact for event in events):
            return await asyncio.to_thread(lambda: [self._with_arrays(event) for event in events])
        return events

    def _with_arrays(self, event: ExperienceProduced) -> ExperienceProduced:
        """Returns the event with large arrays read from their artifacts."""
        read = self._artifacts.read
        return msgspec.structs.replace(event, **{name: array.loaded(read) for name, array in event.arrays.items()})

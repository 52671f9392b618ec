"""`GroupProcessing`: runs the experience pipeline of a stage on leased groups, and hands over the verdicts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from rftd.ops.errors import ConfigError, LogLossError, PipelineError
from rftd.ops.logs import Logger
from rftd.storage.files.artifacts import ArtifactStore
from rftd.streams.events.experience import ExperienceProduced, GroupProcessed
from rftd.streams.events.task import GroupLeased, Member
from rftd.streams.log import topics
from rftd.streams.log.codec import decode_as
from rftd.streams.log.topics import Partition, partition_of
from rftd.streams.spec.spec import StageSpec
from rftd.workers.hosts.membership import Membership
from rftd.workers.pipelines.pipeline import OperatorChain
from rftd.workers.rollout.outbox import Outbox
from rftd.workers.rollout.rollout_log import REASON_CHARS


class GroupProcessing:
    """The experience pipelines of an experiment's stages, one group at a time on a thread."""

    def __init__(self, member: Membership, outbox: Outbox, artifacts: ArtifactStore, log: Logger) -> None:
        self._member = member
        self._outbox = outbox
        self._artifacts = artifacts
        self._log = log
        self._pipelines: dict[int, OperatorChain] = {}
        self._turn = asyncio.Lock()
        """Operators of third parties need not be safe on several threads at once."""

    def open(self, stages: Sequence[StageSpec]) -> None:
        """Opens the operators of all stages. Raises ConfigError for an unknown operator or invalid arguments."""
        self._pipelines = {index: OperatorChain(stage.pipeline) for index, stage in enumerate(stages) if stage.pipeline}

    async def run(self, lease: GroupLeased) -> None:
        """Runs the pipeline on a leased group, and puts the verdicts into the outbox.

        A failing operator is a verdict too: the dispatcher closes the group with the reason.
        """
        pipeline = self._pipelines.get(lease.stage)
        if pipeline is None:
            raise ConfigError(f"stage {lease.stage} has no experience pipeline", fix="start this worker again")
        members = [await self._produced(member) for member in lease.members]
        async with self._turn:
            answer = await self._judged(lease, pipeline, members)
        draft = self._member.writer.draft(
            answer,
            experiment=self._member.experiment,
            partition=partition_of(topics.EXPERIENCES, lease.group),
            causation=lease.lease,
            correlation=lease.group,
        )
        await self._outbox.put([draft])

    async def _judged(
        self, lease: GroupLeased, pipeline: OperatorChain, members: Sequence[ExperienceProduced]
    ) -> GroupProcessed:
        """Returns the verdicts on the members, or the reason of a failure."""
        rollouts = tuple(member.rollout for member in lease.members)
        reason = ""
        try:
            async with asyncio.timeout(lease.deadline_s):
                verdicts, metrics = await asyncio.to_thread(pipeline.judge, members)
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
        )

    async def _produced(self, member: Member) -> ExperienceProduced:
        """Returns a member's experience with all arrays. Raises LogLossError for a missing record."""
        partition = Partition(topics.EXPERIENCES, member.partition)
        records = await self._member.log.read(partition, member.offset, max_records=1)
        if not records or records[0].offset != member.offset:
            where = f"{partition}@{member.offset}"
            raise LogLossError("a record of a leased group is missing", where=where, fix="run rftd verify on the log")
        event = decode_as(records[0], ExperienceProduced)
        if not event.tokens.artifact:
            return event
        return await asyncio.to_thread(self._loaded, event)

    def _loaded(self, event: ExperienceProduced) -> ExperienceProduced:
        """Returns the event with large arrays read from their artifacts."""
        read = self._artifacts.read
        return msgspec.structs.replace(event, **{name: array.loaded(read) for name, array in event.arrays.items()})

"""What a log's events name of an experiment's files, for whoever has no fold at hand."""

from __future__ import annotations

from uuid import UUID

from rftd.storage.garbage import Kept
from rftd.streams import topics
from rftd.streams.log import EventLog
from rftd.streams.topics import partition_of
from rftd.streams.transfer.export import Named
from rftd.streams.transfer.own import OwnRecords, closed_heads


async def kept_in(log: EventLog, experiment: UUID, *, artifacts: bool) -> Kept:
    """What the experiment's events name, as far as the log goes now; of artifacts only if they are asked for."""
    named, own = Named(), OwnRecords(log, experiment)
    few = {partition_of(name, experiment) for name in (topics.EXPERIMENTS, topics.WEIGHTS, topics.CHECKPOINTS)}
    until = await closed_heads(log)
    for partition in topics.TRUTH:
        if partition in until and (artifacts or partition in few):
            async for chunk in own.chunks(partition, until[partition].next_offset):
                for record in chunk:
                    named.take(record)
    return Kept(
        checkpoints=frozenset(event.path for event in named.undeleted_checkpoints()),
        weights=frozenset(event.path for event in named.kept_weights()),
        artifacts=frozenset(sha256.hex() for sha256 in named.artifacts) if artifacts else None,
        snapshots=not named.spine.ended,
    )

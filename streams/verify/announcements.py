"""Check of announcements outside the spine: weights, checkpoints and workers."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any, Final

import numpy as np
import xxhash

from rftd.streams.events import checkpoint, step, weights, worker
from rftd.streams.log import topics
from rftd.streams.log.announcement import announcement_digest
from rftd.streams.log.envelope import Decoded
from rftd.streams.log.writers import source_of
from rftd.streams.verify.evidence import Evidence, hashed
from rftd.streams.verify.facts import ANNOUNCED, Facts

RULE: Final = "announcements-have-a-step"
"""The rule checked here, as named in findings."""
_KEY: Final = Struct("<Q")
"""Encodes the key of an announcement in `Facts.published`."""
_ANNOUNCED: Final = Struct("<QQII")
"""Encodes an `ANNOUNCED` row of the facts."""
_U32: Final = (1 << 32) - 1
"""Keeps the lower 32 bits of a number."""


def named_by_step(facts: Facts, evidence: Evidence, event: step.StepCompleted) -> None:
    """Stores the newest announcement of weights read by the step's trainer."""
    if event.announced:
        key = _key(evidence, event.announced)
        facts.announced.add(_ANNOUNCED.pack(key, event.step, evidence.index, event.generation & _U32))


def judge_announcements(facts: Facts, evidences: Sequence[Evidence]) -> None:
    """Reports announcements of weights named by a step and missing in the log, or different from those its trainer
    read.
    """
    noted: set[int] = set()
    for block in facts.announced.blocks():
        rows = np.frombuffer(block, dtype=ANNOUNCED)
        missing = set(rows["key"].tolist())
        for published_block in facts.published.blocks():
            missing.difference_update(np.frombuffer(published_block, dtype="<u8").tolist())
        for row in rows if missing - noted else ():
            evidence = evidences[int(row["experiment"])]
            key = int(row["key"])
            if key not in missing or key in noted or evidence.lost_some(topics.WEIGHTS):
                continue
            noted.add(key)
            finding = f"step {row['step']} of generation {row['generation']} followed an announcement of weights"
            facts.note(RULE, evidence.id, f"{finding} that is missing or has different content")


def _key(evidence: Evidence, digest: bytes) -> int:
    """Returns a number for an announcement's digest, different for each experiment."""
    return xxhash.xxh3_64_intdigest(digest, seed=evidence.index)


def published(facts: Facts, evidence: Evidence, event: weights.WeightsPublished, _decoded: Decoded) -> None:
    """Stores an announcement of weights; reports a version of a completed experiment announced without a step of the
    same checksum.
    """
    facts.published.add(_KEY.pack(_key(evidence, announcement_digest(event))))
    if event.version == 0:
        evidence.base_checksums.add(event.step_checksum)
    elif evidence.state == "completed" and evidence.checksum(facts, event.version, event.generation) != hashed(
        event.step_checksum
    ):
        finding = f"weights {event.version} of generation {event.generation} have no step"
        facts.note(RULE, evidence.id, finding)
    if facts.files:
        evidence.weights[event.version, event.generation] = event


def weights_retired(_facts: Facts, evidence: Evidence, event: weights.WeightsRetired, _decoded: Decoded) -> None:
    """Removes weights with deleted files from the evidence."""
    evidence.weights.pop((event.version, event.generation), None)


def activated(facts: Facts, evidence: Evidence, event: weights.WeightsActivated, _decoded: Decoded) -> None:
    """Stores the version reported as loaded by a worker."""
    key = (evidence.index, source_of("explorer", event.worker))
    facts.activated.add(key, event.version)
    facts.newest_activated[key] = max(event.version, facts.newest_activated.get(key, -1))


def committed(facts: Facts, evidence: Evidence, event: checkpoint.CheckpointCommitted, _decoded: Decoded) -> None:
    """Stores a checkpoint; reports one of a completed experiment without a step of the same checksum, and a digest of
    the spine different from the step's.
    """
    if evidence.state == "completed" and evidence.checksum(facts, event.step, event.generation) != hashed(
        event.checksum
    ):
        finding = f"the checkpoint of step {event.step} of generation {event.generation} has no step"
        facts.note(RULE, evidence.id, finding)
    step_mark = evidence.marks.get((event.step, event.generation))
    if None not in (step_mark, event.spine) and step_mark != event.spine:
        finding = (
            f"the checkpoint of step {event.step} of generation {event.generation} has another digest of the spine"
        )
        facts.note("spine-is-as-read", evidence.id, f"{finding} than its step")
    evidence.unsaved.discard(event.step)
    evidence.saved_step = max(evidence.saved_step, event.step)
    evidence.checkpoints[event.step, event.generation] = event


def deleted(_facts: Facts, evidence: Evidence, event: checkpoint.CheckpointDeleted, _decoded: Decoded) -> None:
    """Removes a checkpoint with a deleted folder from the evidence."""
    evidence.checkpoints.pop((event.step, event.generation), None)


def started(_facts: Facts, evidence: Evidence, event: worker.WorkerStarted, _decoded: Decoded) -> None:
    """Stores a worker process that joined, as a possible owner of roles and leases."""
    evidence.workers.add(event.worker)


HANDLERS: Final[dict[type, Any]] = {
    weights.WeightsPublished: published,
    weights.WeightsRetired: weights_retired,
    weights.WeightsActivated: activated,
    checkpoint.CheckpointCommitted: committed,
    checkpoint.CheckpointDeleted: deleted,
    worker.WorkerStarted: started,
}
"""The function called with each record, by type of event."""

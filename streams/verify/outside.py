"""Check of the files named by an experiment's events, and of the heads of the log recorded in checkpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple
from uuid import UUID

from rftd.ops.errors import LogCorruptError, LogLossError
from rftd.streams.events.checkpoint import CheckpointCommitted, CheckpointDeleted
from rftd.streams.events.experiment import ExperimentCancelled, ExperimentCompleted, ExperimentFailed, HeadRef
from rftd.streams.events.step import SpineMark
from rftd.streams.events.task import TasksOffered
from rftd.streams.events.weights import WeightsPublished, WeightsRetired
from rftd.streams.log.chain import Heads
from rftd.streams.log.deadletters import understood
from rftd.streams.log.log import EventLog
from rftd.streams.log.topics import CHECKPOINTS, EXPERIMENTS, TRUTH, WEIGHTS, Partition, partition_of
from rftd.streams.spec.spec import ExperimentSpec
from rftd.streams.verify.evidence import Evidence
from rftd.streams.verify.facts import ARTIFACT, Facts

_MAX_MEMORIES: Final = 8
"""Number of newest checkpoints whose recorded heads are compared with the log; each costs a few reads."""


class Outside(NamedTuple):
    """The files that an experiment's events name."""

    experiment: UUID
    """Id of the experiment."""
    spec: ExperimentSpec
    """Specification of the experiment."""
    ended: bool
    """True if the experiment has ended."""
    checkpoints: tuple[CheckpointCommitted, ...]
    """The checkpoints with existing folders: of several generations saving one step, the newest."""
    weights: tuple[WeightsPublished, ...]
    """The weights not retired."""
    artifacts: Callable[[], Iterator[str]]
    """Yields the sha256 of each array stored outside of its event; some are repeated."""
    offers: dict[int, TasksOffered]
    """The largest offer of each serving stage."""
    left_out: frozenset[str] = frozenset()
    """The folders of checkpoints and weights left out by the export or backup the experiment came from."""


class Missing(NamedTuple):
    """A missing or changed file, with a description of the fault."""

    path: str
    """The path of the checkpoint, the weights or the artifact."""
    what: str
    """Description of the fault."""


class Memory(NamedTuple):
    """Heads of the log and digest of the spine recorded in a checkpoint's file."""

    by: str
    """Words that name the checkpoint's file, for findings."""
    step: int
    """Step of the checkpoint."""
    generation: int
    """Generation of the checkpoint."""
    heads: Heads
    """Recorded heads of the log, by partition."""
    spine: SpineMark | None
    """Digest of the spine; None if the file has none."""


class SeenOutside(NamedTuple):
    """Result of checking an experiment's files."""

    missing: list[Missing]
    """The missing or changed files."""
    memories: list[Memory]
    """Heads and digests recorded in the checkpoints, the newest last."""
    not_looked_at: dict[str, int] = {}
    """Number of parts whose bytes are in no file, by kind and location."""


Look = Callable[[Outside], SeenOutside]
"""A function checking an experiment's files; blocks."""


def outside_of(facts: Facts, evidence: Evidence) -> Outside:
    """Returns the files named by a submitted experiment's events: checkpoints, weights and artifacts, and the offers of
    serving stages.
    """
    assert evidence.spec is not None
    newest: dict[str, tuple[int, int]] = {}
    for (step, generation), event in evidence.checkpoints.items():
        newest[event.path] = max((generation, step), newest.get(event.path, (-1, -1)))

    def artifacts() -> Iterator[str]:
        """Yields the sha256 of each artifact of the experiment."""
        for block in facts.artifacts.blocks():
            for digest, index in ARTIFACT.iter_unpack(bytes(block)):
                if index == evidence.index:
                    yield digest.hex()

    return Outside(
        experiment=evidence.id,
        spec=evidence.spec,
        ended=evidence.state in ("completed", "failed", "cancelled", "rejected"),
        checkpoints=tuple(
            event
            for (step, generation), event in evidence.checkpoints.items()
            if newest[event.path] == (generation, step)
        ),
        weights=tuple(evidence.weights.values()),
        artifacts=artifacts,
        offers=evidence.offers,
        left_out=frozenset(_left_out(evidence)),
    )


def _left_out(evidence: Evidence) -> Iterator[str]:
    """Yields the paths of checkpoints and weights left out by the experiment's import."""
    if evidence.imported is None:
        return
    for key in evidence.imported.checkpoints_left_out:
        if key in evidence.checkpoints:
            yield evidence.checkpoints[key].path
    for key in evidence.imported.weights_left_out:
        if key in evidence.weights:
            yield evidence.weights[key].path


async def look_at(log: EventLog, facts: Facts, evidence: Evidence, look: Look) -> None:
    """Reports missing or damaged files of an experiment, and heads recorded in its checkpoints that the log lacks."""
    # The check may take minutes, during which a run retires weights and replaces checkpoints: those are looked up
    # afterwards, and are no findings.
    outcome = await asyncio.to_thread(look, outside_of(facts, evidence))
    evidence.not_looked_at = outcome.not_looked_at
    if outcome.missing:
        replaced = await _given_up_since(log, evidence, facts.ends)
        for missing_file in outcome.missing:
            if missing_file.path not in replaced:
                facts.note("files-are-whole", evidence.id, missing_file.what)
    for memory in outcome.memories[-_MAX_MEMORIES:]:
        step_mark = evidence.marks.get((memory.step, memory.generation))
        if step_mark is None and not (evidence.trail.mark is not None and memory.step > evidence.last_step):
            continue  # it came with an import: it remembers another log
        for partition, mark in memory.heads.items():
            if HeadRef(*partition, *mark) in evidence.losses_accepted:
                continue
            try:
                await log.check_heads({partition: mark} if mark.next_offset and partition in TRUTH else {})
            except (LogLossError, LogCorruptError) as error:
                facts.note("heads-remembered", evidence.id, f"{error.what}; {memory.by} remembers it")
        if None not in (memory.spine, step_mark) and step_mark != memory.spine:
            finding = f"{memory.by} remembers another spine than step {memory.step} says now"
            facts.note("spine-is-as-read", evidence.id, finding)


async def _given_up_since(log: EventLog, evidence: Evidence, ends: dict[Partition, int]) -> set[str]:
    """Returns the folders replaced or removed according to events beyond `ends`, because a run continues during the
    check.
    """
    paths = set()
    experiment = evidence.id
    for stream in (CHECKPOINTS, WEIGHTS, EXPERIMENTS):
        partition = partition_of(stream, experiment)
        offset = ends.get(partition, 0)
        names: dict[tuple[int, int], str] = {}
        while records := await log.read(partition, offset):
            offset = records[-1].offset + 1
            for record in records:
                decoded = understood(record)
                event = decoded.event if decoded is not None and decoded.head.experiment == experiment else None
                if isinstance(event, CheckpointCommitted | CheckpointDeleted):
                    paths.add(event.path)
                elif isinstance(event, ExperimentCompleted | ExperimentCancelled | ExperimentFailed):
                    paths.update(published.path for published in evidence.weights.values())
                elif isinstance(event, WeightsPublished):
                    names[event.version, event.generation] = event.path
                elif isinstance(event, WeightsRetired):
                    paths.add(names.get((event.version, event.generation), f"v{event.version}-g{event.generation}"))
    return paths

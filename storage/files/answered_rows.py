"""`AnsweredRows`: the answers of one evaluation, from the log and from the artifacts that it names."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from rftd.ops.errors import CodecError, RftdError
from rftd.storage.files.artifacts import ArtifactStore
from rftd.storage.queries.evaluations import ScorePlace
from rftd.streams.events.experience import EvalScored
from rftd.streams.figures.eval_answers import EvalAnswer, unpacked
from rftd.streams.log import topics
from rftd.streams.log.codec import decode
from rftd.streams.log.topics import Partition
from rftd.streams.log.writers import source_of

if TYPE_CHECKING:
    from rftd.streams.log.log import EventLog


class AnsweredRows:
    """All answers of an evaluation by (row, attempt); those whose text was not kept have their scores alone."""

    def __init__(self) -> None:
        self.answers: dict[tuple[int, int], EvalAnswer] = {}
        self.kept: set[tuple[int, int]] = set()
        """Those with their texts."""
        self.notes: list[str] = []
        """Reasons for what is missing."""

    def reward_of(self, row: int) -> float | None:
        """The mean reward of a row's answers; None if it has none."""
        rewards: list[float] = []
        while (answer := self.answers.get((row, len(rewards)))) is not None:
            rewards.append(answer.reward)
        return sum(rewards) / len(rewards) if rewards else None

    def rows(self) -> list[int]:
        """The rows that were answered, in order."""
        return sorted({row for row, _ in self.answers})

    def take(self, scored: EvalScored, texts: Sequence[EvalAnswer]) -> None:
        """Takes in the answers to a range of rows."""
        rewards = scored.rewards.view().tolist()
        tokens = scored.tokens.view().tolist()
        right = None if scored.right is None else scored.right.view().tolist()
        for number, reward in enumerate(rewards):
            row = scored.row_start + number // scored.tries
            attempt = number % scored.tries
            flag = None if right is None else right[number] != 0
            # The log's scores count, whatever is in the artifact: decisions rest on them.
            self.answers[row, attempt] = EvalAnswer(
                row=row, attempt=attempt, reward=reward, right=flag, tokens=tokens[number]
            )
        for answer in texts:
            key = (answer.row, answer.attempt)
            scores = self.answers.get(key)
            # Rewards of events are in single precision.
            if scores is not None and math.isclose(scores.reward, answer.reward, rel_tol=1e-6, abs_tol=1e-30):
                self.answers[key] = msgspec.structs.replace(answer, right=scores.right, tokens=scores.tokens)
                self.kept.add(key)


async def answered_rows(
    log: EventLog, places: Sequence[ScorePlace], store: ArtifactStore | None, holders: Mapping[UUID, UUID]
) -> AnsweredRows:
    """The answers whose scores lie at these places; `store` has their texts, `holders` the worker of each lease.

    What cannot be read is noted, and so are scores of who held no lease.
    """
    answered = AnsweredRows()
    for place in places:
        try:
            scored = await _scored(log, place, holders)
        except CodecError as error:
            answered.notes.append(f"no answers from row {place.row_start} on: {error.what}")
            continue
        if scored is None:
            answered.notes.append(f"the log holds no scores from row {place.row_start} on that a lease was for")
            continue
        texts: tuple[EvalAnswer, ...] = ()
        try:
            texts = await asyncio.to_thread(_texts, scored, store)
        except (RftdError, OSError) as error:
            answered.notes.append(f"no texts from row {place.row_start} on: {error}")
        answered.take(scored, texts)
    return answered


async def _scored(log: EventLog, place: ScorePlace, holders: Mapping[UUID, UUID]) -> EvalScored | None:
    records = await log.read(Partition(topics.EXPERIENCES, place.partition), place.offset, max_records=1)
    # A log that has dropped the record answers with the next one that it holds.
    if not records or records[0].offset != place.offset:
        return None
    decoded = decode(records[0])
    scored = decoded.event
    if not isinstance(scored, EvalScored):
        return None
    worker = holders.get(scored.lease)
    # Anybody may write such a record where he may write to the topic, and the tables keep the first one.
    return scored if worker is not None and decoded.head.source == source_of("explorer", worker) else None


def _texts(scored: EvalScored, store: ArtifactStore | None) -> tuple[EvalAnswer, ...]:
    if scored.answers is None or store is None:
        return ()
    return unpacked(scored.answers.loaded(store.read).data)

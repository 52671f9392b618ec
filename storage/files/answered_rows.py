"""`AnsweredRows`: the answers of one evaluation, read from the log and from the evaluation's artifacts."""

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
    """All answers of an evaluation by (row, attempt); an answer without a stored text has only scores."""

    def __init__(self) -> None:
        self.answers: dict[tuple[int, int], EvalAnswer] = {}
        """Answers by row and attempt."""
        self.kept: set[tuple[int, int]] = set()
        """Keys (row, attempt) of the answers with a stored text."""
        self.notes: list[str] = []
        """Reasons for missing answers or texts."""

    def reward_of(self, row: int) -> float | None:
        """Returns the mean reward of a row's answers; None without answers."""
        rewards: list[float] = []
        while (answer := self.answers.get((row, len(rewards)))) is not None:
            rewards.append(answer.reward)
        return sum(rewards) / len(rewards) if rewards else None

    def rows(self) -> list[int]:
        """Returns the numbers of the answered rows in ascending order."""
        return sorted({row for row, _ in self.answers})

    def take(self, scored: EvalScored, texts: Sequence[EvalAnswer]) -> None:
        """Adds the scores of a range of rows, and the texts in agreement with the scores."""
        rewards = scored.rewards.view().tolist()
        tokens = scored.tokens.view().tolist()
        right = None if scored.right is None else scored.right.view().tolist()
        for number, reward in enumerate(rewards):
            row = scored.row_start + number // scored.tries
            attempt = number % scored.tries
            flag = None if right is None else right[number] != 0
            # The log's scores count, regardless of the artifact: decisions are based on the log.
            self.answers[row, attempt] = EvalAnswer(
                row=row, attempt=attempt, reward=reward, right=flag, tokens=tokens[number]
            )
        for answer in texts:
            key = (answer.row, answer.attempt)
            scores = self.answers.get(key)
            # Rewards in events are in single precision.
            if scores is not None and math.isclose(scores.reward, answer.reward, rel_tol=1e-6, abs_tol=1e-30):
                self.answers[key] = msgspec.structs.replace(answer, right=scores.right, tokens=scores.tokens)
                self.kept.add(key)


async def answered_rows(
    log: EventLog, score_places: Sequence[ScorePlace], store: ArtifactStore | None, holders: Mapping[UUID, UUID]
) -> AnsweredRows:
    """Returns the answers scored at the given positions; texts come from `store`, the worker of each lease from
    `holders`.

    Unreadable records become notes, and so do scores written without holding the lease.
    """
    answered = AnsweredRows()
    for score_place in score_places:
        try:
            scored = await _read_scores(log, score_place, holders)
        except CodecError as error:
            answered.notes.append(f"no answers from row {score_place.row_start} on: {error.what}")
            continue
        if scored is None:
            answered.notes.append(f"the log holds no scores from row {score_place.row_start} on that a lease was for")
            continue
        texts: tuple[EvalAnswer, ...] = ()
        try:
            texts = await asyncio.to_thread(_read_texts, scored, store)
        except (RftdError, OSError) as error:
            answered.notes.append(f"no texts from row {score_place.row_start} on: {error}")
        answered.take(scored, texts)
    return answered


async def _read_scores(log: EventLog, score_place: ScorePlace, holders: Mapping[UUID, UUID]) -> EvalScored | None:
    """Returns the scores at a position, if written by the holder of their lease; else None."""
    records = await log.read(Partition(topics.EXPERIENCES, score_place.partition), score_place.offset, max_records=1)
    # A log that dropped the record answers with the next record that it holds.
    if not records or records[0].offset != score_place.offset:
        return None
    decoded = decode(records[0])
    scored = decoded.event
    if not isinstance(scored, EvalScored):
        return None
    worker = holders.get(scored.lease)
    # Anybody with write access to the topic may write a record of scores, and the tables keep the first.
    return scored if worker is not None and decoded.head.source == source_of("explorer", worker) else None


def _read_texts(scored: EvalScored, store: ArtifactStore | None) -> tuple[EvalAnswer, ...]:
    """Returns the stored texts of some scores; empty without an artifact."""
    if scored.answers is None or store is None:
        return ()
    return unpacked(scored.answers.loaded(store.read).data)

"""`SampleReader`: rollouts of a step and answers of an evaluation as rows of text, from log and artifacts."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from rftd.ops.errors import NotFoundError, RftdError
from rftd.ops.logs import Logger
from rftd.storage.files.artifacts import ArtifactStore
from rftd.streams.events.experience import EvalScored, ExperienceProduced
from rftd.streams.events.registry import definition_of
from rftd.streams.figures.eval_answers import EvalAnswer, kept_places, unpacked
from rftd.streams.log import topics
from rftd.streams.log.codec import decode, decode_head
from rftd.streams.log.envelope import Record
from rftd.streams.log.log import EventLog
from rftd.streams.log.topics import Partition, partition_of
from rftd.streams.spec.spec import ExperimentSpec
from rftd.workers.datasets.stage_tokenizer import Decoder, stage_decoder
from rftd.workers.tracking.point import Point, Sample, SampleSource

MAX_CHARS: Final = 2_000
"""Maximum length of a text in a row: the end of a longer prompt, the beginning of a longer answer."""
_EVAL_SCORED_TYPE: Final = definition_of(EvalScored).name
"""Name of the type of records with scores of an evaluation."""
_BATCH_RECORDS: Final = 500
"""Records read from the log at once."""
_MAX_RECORDS: Final = 200_000
"""Maximum records searched for the answers of one evaluation."""


class SampleReader:
    """Reads the rows of sample tables from log and artifacts.

    A rollout without its record is omitted; rows with a missing artifact are omitted with a warning.
    """

    def __init__(
        self,
        log: EventLog,
        spec: ExperimentSpec,
        count: int,
        *,
        folder: Path,
        starts: Mapping[Partition, int],
        logger: Logger,
    ) -> None:
        """Reads from `log` for the experiment of `spec`; tables have at most `count` rows.

        `folder` is the job's; `starts` are the first log positions of the experiment; `logger` receives warnings.
        """
        self._log = log
        self._spec = spec
        self._count = count
        self._store = ArtifactStore(folder / "artifacts")
        """Artifacts of the experiment."""
        self._starts = starts
        self._logger = logger
        self._decoders: dict[int, Decoder] = {}
        """Decoders of tokens by stage, opened on first use."""

    async def with_samples(self, point: Point) -> Point:
        """Returns the point with the rows of its table; a point without a source of rows is returned unchanged."""
        source = point.source
        if source is None:
            return point
        try:
            rows = await (
                self._rows_of_rollouts(source) if source.evaluation is None else self._rows_of_evaluation(source)
            )
        except (RftdError, OSError) as error:
            # A missing table must not delay later figures.
            self._logger.warning("tracker.no_samples", table=point.table, step=point.step, reason=str(error))
            rows = []
        return msgspec.structs.replace(point, samples=tuple(rows), source=None)

    async def _rows_of_rollouts(self, source: SampleSource) -> list[Sample]:
        """Returns the rollouts at the source's log positions as rows."""
        samples = []
        for partition, offset in source.places:
            records = await self._log.read(Partition(topics.EXPERIENCES, partition), offset, max_records=1)
            # A log without the record answers with the next existing record.
            event = decode(records[0]).event if records and records[0].offset == offset else None
            if isinstance(event, ExperienceProduced) and event.stage < len(self._spec.stages):
                try:
                    samples.append(await asyncio.to_thread(self._row_of_rollout, event))
                except NotFoundError as error:
                    self._warn_of_missing(error)
        return samples

    def _row_of_rollout(self, event: ExperienceProduced) -> Sample:
        """Returns a rollout as a row: prompt and answer of its last step."""
        decoder = self._decoders.get(event.stage)
        if decoder is None:
            decoder = self._decoders[event.stage] = stage_decoder(self._spec.stages[event.stage])
        tokens = event.tokens.loaded(self._store.read).view().tolist()
        # For a rollout in several steps the last step, which ends with the answer.
        last = event.steps[-1] if event.steps else None
        first = len(tokens) - last.tokens if last is not None else 0
        middle = first + (last.prompt_tokens if last is not None else event.prompt_tokens)
        return Sample(
            prompt=_last_chars(decoder.decode(tokens[first:middle])),
            answer=decoder.decode(tokens[middle:])[:MAX_CHARS],
            reward=event.reward,
            tokens=len(tokens) - middle,
            finish=event.finish,
        )

    async def _rows_of_evaluation(self, source: SampleSource) -> list[Sample]:
        """Returns a selection of an evaluation's answers as rows; empty if their mean is not the recorded score."""
        assert source.evaluation is not None
        scored = await self._scores_by_first_row(source)
        rewards = [reward for event in scored.values() for reward in event.rewards.view().tolist()]
        mean = sum(rewards) / len(rewards) if rewards else math.nan
        # Anyone with write access to the topic may write scores; only valid ones add up to the recorded score.
        if not math.isclose(mean, source.score, rel_tol=1e-5, abs_tol=1e-6):
            return []
        answers: list[EvalAnswer] = []
        for event in scored.values():
            if event.answers is not None:
                try:
                    loaded = await asyncio.to_thread(event.answers.loaded, self._store.read)
                except NotFoundError as error:
                    self._warn_of_missing(error)
                else:
                    answers += unpacked(loaded.data)
        names = [f"{answer.row}/{answer.attempt}" for answer in answers]
        indices = kept_places([answer.reward for answer in answers], names, self._count)
        return [_row_of_answer(answers[index]) for index in indices]

    def _warn_of_missing(self, error: NotFoundError) -> None:
        """Logs an artifact whose rows are omitted."""
        self._logger.warning("tracker.missing_artifact", reason=str(error))

    async def _scores_by_first_row(self, source: SampleSource) -> dict[int, EvalScored]:
        """Returns the scores of an evaluation by their first row; for a range answered again, the first scores."""
        assert source.evaluation is not None
        partition = partition_of(topics.EXPERIENCES, source.evaluation)
        start = max(self._starts.get(partition, 0), dict(source.places).get(partition.number, 0))
        scored: dict[int, EvalScored] = {}
        rows = 0
        read = 0
        while rows < source.rows and read < _MAX_RECORDS:
            records = await self._log.read(partition, start + read, max_records=_BATCH_RECORDS)
            if not records:
                break
            read = records[-1].offset + 1 - start
            for event in _scores_in(records):
                if event.eval == source.evaluation and event.row_start not in scored:
                    scored[event.row_start] = event
                    rows += event.rows
        return scored


def _scores_in(records: Sequence[Record]) -> list[EvalScored]:
    """Returns the scores of evaluations among records, decoding no other records."""
    events = []
    for record in records:
        try:
            if decode_head(record).type == _EVAL_SCORED_TYPE and isinstance(event := decode(record).event, EvalScored):
                events.append(event)
        except RftdError:  # a record of another program
            continue
    return events


def _row_of_answer(answer: EvalAnswer) -> Sample:
    """Returns an answer of an evaluation as a row."""
    return Sample(
        prompt=_last_chars(answer.prompt),
        answer=(answer.text or answer.error)[:MAX_CHARS],
        reward=answer.reward,
        tokens=answer.tokens,
        finish=answer.finish,
        truth=answer.truth[:MAX_CHARS],
        row=answer.row,
    )


def _last_chars(prompt: str) -> str:
    """Returns the end of a prompt, at most `MAX_CHARS` long."""
    return prompt[-MAX_CHARS:]

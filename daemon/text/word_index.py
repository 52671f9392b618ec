"""`WordIndex`: the words in the answers of each experiment, indexed in slices of time by searches.

The indices are a cache beside the tables: they are never rebuilt or verified, and may be removed at any time. An index
has words and ids alone; texts come from the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from rftd.daemon.run.operations import TextOrigin
from rftd.daemon.text.passages import turns_of
from rftd.daemon.text.texts import WantedText
from rftd.daemon.text.transcript import TextTools
from rftd.daemon.text.word_files import Matches
from rftd.ops import limits
from rftd.ops.clock import Clock
from rftd.ops.errors import CodecError, RftdError
from rftd.streams.events.experience import ExperienceProduced
from rftd.streams.events.registry import definition_of
from rftd.streams.folds.spine import Kept
from rftd.streams.log import topics
from rftd.streams.log.codec import decode, decode_head
from rftd.streams.log.envelope import Record
from rftd.streams.log.topics import Partition

_PRODUCED: Final = definition_of(ExperienceProduced).name
"""Type of the indexed event."""
_FORMAT_VERSION: Final = 1
"""Version of the index's format."""
_BATCH_RECORDS: Final = 256
"""Maximum number of records read and decoded at a time."""


class IndexProgress(NamedTuple):
    """The indexed part of an experiment."""

    experiences: int
    """Number of indexed experiences."""
    share: float
    """Share of the log's records read so far, 0 to 1."""


class WordStore(Protocol):
    """Storage of the indices: `WordFiles`, or `WordTables` in Postgres."""

    async def present(self) -> list[UUID]:
        """Returns the ids of the experiments with an index."""
        ...

    async def prepare(self, experiment: UUID, stamp: int) -> dict[int, int]:
        """Returns the next offset to index, by partition; an unusable index, or one with another stamp, is emptied."""
        ...

    async def remove(self, experiment: UUID) -> None:
        """Deletes an index."""
        ...

    async def count(self, experiment: UUID) -> int:
        """Returns the number of indexed experiences."""
        ...

    async def add(self, experiment: UUID, answers: Sequence[tuple[UUID, str]], partition: int, following: int) -> None:
        """Adds answers, each once, and stores `following` as the next offset of the partition."""
        ...

    async def query(self, experiment: UUID, phrases: Sequence[str], before: int | None, limit: int) -> Matches:
        """Returns up to `limit` matches with numbers below `before`, newest first."""
        ...


class WordIndex:
    """The indices of a daemon's experiments; requests are handled one at a time."""

    def __init__(self, store: WordStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        """Clock that limits the indexing of one request."""
        self._request_lock = asyncio.Lock()
        """Lock held while a request is handled."""

    async def search(
        self, tools: TextTools, experiment: UUID, phrases: Sequence[str], *, before: int | None, limit: int
    ) -> tuple[Matches, IndexProgress]:
        """Returns up to `limit` matches with numbers below `before` (None: the newest), after indexing for at most a
        second.

        Repeated requests complete the index. Raises NotFoundError without a tokenizer.
        """
        async with self._request_lock:
            progress = await self._fill_for_a_while(tools, experiment)
            return await self._store.query(experiment, phrases, before, limit), progress

    async def forget(self, experiments: Sequence[UUID]) -> None:
        """Removes the indices of experiments."""
        async with self._request_lock:
            for experiment in experiments:
                await self._store.remove(experiment)

    async def present(self) -> list[UUID]:
        """Returns the ids of the experiments with an index."""
        async with self._request_lock:
            return await self._store.present()

    async def _fill_for_a_while(self, tools: TextTools, experiment: UUID) -> IndexProgress:
        """Indexes records for at most `limits.WORDS_SLICE_S` seconds; returns the indexed part."""
        origin = tools.origin
        assert origin is not None
        until_s = self._clock.monotonic_s() + limits.WORDS_SLICE_S
        # Another format, or an index made before payloads were dropped, is not continued.
        stamp = _FORMAT_VERSION * 1_000_000 + origin.payloads_dropped_through % 1_000_000
        positions = await self._store.prepare(experiment, stamp)
        heads = await tools.log.heads()
        starts = {head.partition: head.next_offset for head in origin.start if head.stream == topics.EXPERIENCES}
        pending = indexed = 0
        for partition, mark in sorted(heads.items()):
            if partition.stream != topics.EXPERIENCES:
                continue
            start = starts.get(partition.number, 0)
            offset = max(start, positions.get(partition.number, 0))
            while offset < mark.next_offset and self._clock.monotonic_s() < until_s:
                offset = await self._index_batch(tools, experiment, partition, offset, mark.next_offset)
            indexed += min(offset, mark.next_offset) - start
            pending += max(0, mark.next_offset - offset)
        count = await self._store.count(experiment)
        return IndexProgress(count, 1.0 if not pending else indexed / (indexed + pending))

    async def _index_batch(
        self, tools: TextTools, experiment: UUID, partition: Partition, offset: int, end: int
    ) -> int:
        """Indexes the next batch of a partition's records, up to the offset `end`; returns the offset after them."""
        records = await tools.log.read(partition, offset, max_records=_BATCH_RECORDS)
        if not records:
            return end
        answers = await _answers(tools, experiment, [record for record in records if record.offset < end])
        following = records[-1].offset + 1
        await self._store.add(experiment, answers, partition.number, following)
        return following


async def _answers(tools: TextTools, experiment: UUID, records: Sequence[Record]) -> list[tuple[UUID, str]]:
    """Returns id and answer of the experiment's experiences among the records, except those without a payload."""
    requests: dict[UUID, tuple[int, WantedText]] = {}
    for record in records:
        try:
            head = decode_head(record)
            if head.experiment != experiment or head.type != _PRODUCED:
                continue
            event = decode(record).event
            if isinstance(event, ExperienceProduced):
                event = await tools.loaded(event)
                ids = b"".join(turn.answer.tobytes() for turn in turns_of(event, event.arrays))
                requests[event.experience] = (event.stage, WantedText(ids, special=False))
        except (CodecError, RftdError):  # a foreign record, or a dropped payload
            continue
    answers: list[tuple[UUID, str]] = []
    for stage in sorted({stage for stage, _ in requests.values()}):
        of_stage = {id: text for id, (number, text) in requests.items() if number == stage}
        texts, _ = await tools.texts.decode(tools.tokenizer(stage), list(of_stage.values()))
        answers += [(id, texts[text].text) for id, text in of_stage.items()]
    return answers


def is_gone(origin: TextOrigin | None) -> bool:
    """True if the texts of an experiment were removed or dropped, or if the experiment is unknown."""
    return origin is None or origin.kept is Kept.REMOVED or origin.payloads_dropped

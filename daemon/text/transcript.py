"""An experience as text: turns by the job's tokenizer, the row's messages and truth, and notes about missing parts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from rftd.daemon.run.operations import TextOrigin
from rftd.daemon.text.passages import RolloutTurn, turns_of
from rftd.daemon.text.texts import DecodedText, TokenizerFile, WantedText
from rftd.ops.errors import NotFoundError, RftdError
from rftd.storage.files.artifacts import ARTIFACTS, ArtifactStore
from rftd.storage.files.tokenizer_copies import TOKENIZER, has_byte_tokens
from rftd.streams.events.experience import ExperienceProduced
from rftd.streams.folds.spine import Kept
from rftd.streams.log import topics
from rftd.streams.log.codec import decode_as
from rftd.streams.log.topics import Partition

if TYPE_CHECKING:
    from rftd.daemon.text.texts import Texts
    from rftd.storage.queries.experiences import ExperienceRow, TaskRow
    from rftd.streams.log.arrays import Array
    from rftd.streams.log.log import EventLog
    from rftd.streams.spec.spec import StageSpec
    from rftd.workers.datasets.task import Task

NO_SPEC = "the log keeps no specification of this experiment: ids only, and no truth"
"""Note for an experiment without a specification in the log."""


class ReadRollout(NamedTuple):
    """An experience with its payload, as far as the log and the artifacts have it."""

    row: ExperienceRow
    """Row of the experience."""
    event: ExperienceProduced | None
    """The experience's event; None if it is not in the log."""
    arrays: Mapping[str, Array]
    """Loaded arrays by field; empty if they were dropped or are missing."""
    turns: tuple[RolloutTurn, ...]
    """Turns of the rollout; empty if the payload is missing."""
    notes: tuple[str, ...]
    """Notes about missing parts."""


class TextTools(NamedTuple):
    """Decoder, artifacts and specification for the texts of one experiment."""

    log: EventLog
    """The event log."""
    texts: Texts
    """Decoder of ids."""
    origin: TextOrigin | None
    """Specification and tokenizers; None for an unknown experiment."""

    @property
    def store(self) -> ArtifactStore | None:
        """The artifacts of the experiment."""
        return None if self.origin is None else ArtifactStore(Path(self.origin.spec.job_dir) / ARTIFACTS)

    def stage(self, number: int) -> StageSpec | None:
        """Returns a stage of the specification; None without one."""
        stages = () if self.origin is None else self.origin.spec.stages
        return stages[number] if 0 <= number < len(stages) else None

    async def record(self, partition: int, offset: int) -> ExperienceProduced:
        """Returns the event of an experience at its position. Raises NotFoundError if the log no longer has it."""
        # A log without the dropped record answers with the next existing one.
        records = await self.log.read(Partition(topics.EXPERIENCES, partition), offset, max_records=1)
        if not records or records[0].offset != offset:
            raise NotFoundError(f"the log holds no payload of the experience at {partition}@{offset}")
        return decode_as(records[0], ExperienceProduced)

    async def loaded(self, event: ExperienceProduced) -> ExperienceProduced:
        """Returns the event with the bytes of its arrays. Raises NotFoundError for dropped or missing ones."""
        store = self.store
        arrays = event.arrays
        if not any(array.artifact for array in arrays.values()):
            return event
        if store is None:
            raise NotFoundError(NO_SPEC)
        loaded = {name: await asyncio.to_thread(array.loaded, store.read) for name, array in arrays.items()}
        return msgspec.structs.replace(event, **loaded)

    def tokenizer(self, number: int) -> TokenizerFile | None:
        """Returns the tokenizer of a stage; None for tokens that are bytes. Raises NotFoundError without any."""
        stage = self.stage(number)
        if self.origin is None or self.store is None or stage is None:
            raise NotFoundError(NO_SPEC)
        if has_byte_tokens(stage):
            return None
        copies = self.origin.tokenizers
        sha256 = copies[number] if number < len(copies) else ""
        if sha256 and self.store.has(sha256):
            return TokenizerFile(self.store.path_of(sha256), sha256)
        if sha256 and self.origin.kept is not Kept.HERE:
            raise NotFoundError("the experiment's files, its tokenizer among them, are archived or removed")
        file = Path(stage.model.path) / TOKENIZER
        if file.is_file():  # the copy is missing; the folder has the file of the workers
            return TokenizerFile(file)
        if not Path(stage.model.path).is_dir():
            raise NotFoundError(f"model folder {stage.model.path!r} does not exist, and no copy of its tokenizer")
        raise NotFoundError(
            f"model folder {stage.model.path!r} has no tokenizer.json: slow tokenizers are not read here"
        )


async def rollout_of(tools: TextTools, row: ExperienceRow) -> ReadRollout:
    """Returns an experience with its payload, or with the reason for the missing one."""
    try:
        event = await tools.record(row.partition, row.offset)
    except RftdError as error:
        return ReadRollout(row, None, {}, (), (f"no text and no ids: {error.what}",))
    try:
        arrays = (await tools.loaded(event)).arrays
        return ReadRollout(row, event, arrays, tuple(turns_of(event, arrays)), ())
    except RftdError as error:
        return ReadRollout(row, event, {}, (), (f"no text and no ids: {error.what}",))


class DecodedTurn(NamedTuple):
    """The texts of a turn."""

    prompt: DecodedText
    """Prompt with special tokens."""
    bare_prompt: DecodedText
    """Prompt without special tokens."""
    answer: DecodedText
    """Answer without its end mark."""
    parts: tuple[DecodedText, ...]
    """Parts of the answer by writer."""


class DecodedRollouts(NamedTuple):
    """The texts of rollouts by experience, or the reason for none."""

    turns: Mapping[str, tuple[DecodedTurn, ...]]
    """Turns of each experience."""
    notes: tuple[str, ...] = ()
    """Reasons for missing texts."""


async def decoded(tools: TextTools, stage: int, rollouts: Sequence[ReadRollout], *, chars: int) -> DecodedRollouts:
    """Returns the texts of rollouts of one stage, decoded in one request."""
    requests = [text for rollout in rollouts for turn in rollout.turns for text in _texts_of_turn(turn)]
    if not requests:
        return DecodedRollouts({})
    try:
        texts, note = await tools.texts.decode(tools.tokenizer(stage), requests, chars=chars)
    except RftdError as error:
        return DecodedRollouts({}, (f"no text, only ids: {error.what}",))
    turns = {
        rollout.row.id: tuple(_decoded_turn([texts[text] for text in _texts_of_turn(turn)]) for turn in rollout.turns)
        for rollout in rollouts
        if rollout.turns
    }
    return DecodedRollouts(turns, (note,) if note else ())


def _texts_of_turn(turn: RolloutTurn) -> Iterator[WantedText]:
    """Yields the texts of a turn to decode: prompt and answer, each with and without special tokens, then the parts."""
    prompt = turn.prompt.tobytes()
    answer = turn.answer.tobytes()
    yield from (
        WantedText(prompt),
        WantedText(prompt, special=False),
        WantedText(answer),
        WantedText(answer, special=False),
    )
    if len(turn.parts) > 1 or not all(span.by_model for span in turn.parts):
        for span in turn.parts:
            yield WantedText(turn.answer[span.start - turn.start : span.end - turn.start].tobytes())


def _decoded_turn(texts: Sequence[DecodedText]) -> DecodedTurn:
    """Returns a turn made of its decoded texts, which are in the order of `_texts_of_turn`."""
    prompt, bare_prompt, whole, plain, *parts = texts
    # The answer's end mark is no text of the answer; marks between the turns of a conversation are.
    answer = plain if whole.text.startswith(plain.text) else whole
    return DecodedTurn(prompt, bare_prompt, answer, tuple(parts) or (answer,))


async def task_of_rollout(tools: TextTools, stage: int, task: TaskRow | None) -> tuple[Task | None, str]:
    """Returns the task of a rollout from its row, or a note about the missing one."""
    stage_spec = tools.stage(stage)
    if stage_spec is None:
        return None, NO_SPEC
    if task is None:
        return None, ""
    try:
        return await tools.texts.rows.task(stage_spec, task.row, task.epoch), ""
    except RftdError as error:
        return None, f"no truth: {error.what}"

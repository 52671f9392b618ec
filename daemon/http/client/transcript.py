"""`Transcript`: an experience as text, by the tokenizer in the model's folder, and the truth of its row.

Both are read here, where the person is: loading a tokenizer takes seconds, which no daemon has. What cannot be read is
missing, and a note says why.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, NamedTuple

from rftd.daemon.cli.output.terminal import one_line
from rftd.daemon.http.client.client import Client
from rftd.daemon.http.views.events import events
from rftd.daemon.http.views.experiences import ExperienceView
from rftd.ops.decoding import converted
from rftd.ops.errors import DataError, RftdError
from rftd.streams.spec.spec import ExperimentSpec, StageSpec
from rftd.streams.spec.split_submission import joined
from rftd.streams.spec.stage_tasks import task_place, tasksets_of
from rftd.workers.datasets.files import taskset_files
from rftd.workers.datasets.stage_tokenizer import Decoder, stage_decoder
from rftd.workers.datasets.taskset import Taskset

_SUBMISSIONS = 100
"""Submissions of one experiment that are looked at: one, or its two halves, each maybe more than once."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of an answer that the model or the workflow wrote."""

    by: Literal["model", "workflow"]
    text: str


@dataclass(frozen=True, slots=True)
class TextTurn:
    """A prompt and its answer."""

    prompt: str
    bare_prompt: str
    """The prompt without the marks of the chat template."""
    answer: str
    passages: tuple[Passage, ...] = ()
    """The answer in pieces where the workflow wrote some of it, as what a tool returned; empty where the model wrote
    all of it."""


@dataclass(frozen=True, slots=True)
class IdTurn:
    """The token ids of a prompt and of its answer."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Transcript:
    """An experience as text."""

    turns: tuple[TextTurn, ...] = ()
    """One; of a rollout in several steps one for each. Empty without a tokenizer."""
    ids: tuple[IdTurn, ...] = ()
    """Each turn as token ids, where there is no text."""
    truth: str | None = None
    """The right answer in the row of its task; None if there is none, or it cannot be read."""
    pieces: tuple[str, ...] = ()
    """The text of each id behind the first prompt, by itself; empty unless it was asked for."""
    notes: tuple[str, ...] = ()
    """The reasons for all that is missing."""


def specification(client: Client, id: str) -> ExperimentSpec | None:
    """The specification that the log keeps of an experiment; None if the log has none any more."""
    page = client.ask(events, name=id, type=["experiment.submitted"], limit=_SUBMISSIONS, full=True).value
    if not page.items:
        return None
    spec, *more = (converted(each.payload["spec"], ExperimentSpec) for each in page.items)
    for half in more:
        both = joined(spec, half)
        spec = both if isinstance(both, ExperimentSpec) else spec
    return spec


def transcript_of(spec: ExperimentSpec | None, shown: ExperienceView, *, pieces: bool = False) -> Transcript:
    """The text of an experience that was asked for with its tokens; `pieces`: also that of each token by itself.

    Blocks while files are read.
    """
    number = shown.experience.stage
    if spec is None or number >= len(spec.stages):
        why = "the log keeps no specification of its experiment: ids only, and no truth"
        return Transcript(ids=_ids(shown), notes=(why,))
    stage = spec.stages[number]
    notes = []
    turns: tuple[TextTurn, ...] = ()
    alone: tuple[str, ...] = ()
    truth = None
    try:
        decoder = stage_decoder(stage)
        turns = experience_turns(decoder, shown)
        if pieces:
            response = (shown.tokens or [])[shown.experience.prompt_tokens :]
            alone = tuple(decoder.decode([token], special=True) for token in response)
    except RftdError as error:
        notes.append(f"no text, only ids: {one_line(error.what)}")
    try:
        truth = _truth(stage, shown)
    except RftdError as error:
        notes.append(f"no truth: {one_line(error.what)}")
    return Transcript(turns, () if turns else _ids(shown), truth, alone, tuple(notes))


def experience_turns(decoder: Decoder, shown: ExperienceView) -> tuple[TextTurn, ...]:
    """The prompts and answers of an experience that was asked for with its tokens."""
    return tuple(_turn(decoder, sequence) for sequence in _sequences(shown))


def _ids(shown: ExperienceView) -> tuple[IdTurn, ...]:
    return tuple(IdTurn(tuple(sequence.prompt), tuple(sequence.answer)) for sequence in _sequences(shown))


class _Sequence(NamedTuple):
    """The ids of a prompt and of its answer."""

    prompt: Sequence[int]
    answer: Sequence[int]
    by_model: Sequence[bool]
    """True for each id of the answer that the model drew."""


def _sequences(shown: ExperienceView) -> Iterator[_Sequence]:
    tokens = shown.tokens or []
    by_model = _by_model(shown)
    if not shown.steps:
        middle = shown.experience.prompt_tokens
        yield _Sequence(tokens[:middle], tokens[middle:], by_model)
    first = 0
    answered = 0
    for step in shown.steps:
        middle = first + step.prompt_tokens
        end = first + step.tokens
        length = end - middle
        yield _Sequence(tokens[first:middle], tokens[middle:end], by_model[answered : answered + length])
        first = end
        answered += length


def _by_model(shown: ExperienceView) -> list[bool]:
    """True for each response token that was drawn; where no settings are recorded, for each that is trained."""
    count = len(shown.tokens or ()) - shown.experience.prompt_tokens
    if not shown.sampling:
        return [bool(trained) for trained in shown.loss_mask or ()] or [True] * count
    drawn = [False] * count
    for span in shown.sampling:
        drawn[span.start : span.end] = [True] * (span.end - span.start)
    return drawn


def _turn(decoder: Decoder, sequence: _Sequence) -> TextTurn:
    prompt, answer, _ = sequence
    whole = decoder.decode(answer, special=True)
    said = decoder.decode(answer)
    # The mark that ends an answer is none of it; marks between the turns of a conversation are.
    bare = decoder.decode(prompt)
    text = said if whole.startswith(said) else whole
    return TextTurn(decoder.decode(prompt, special=True), bare, text, tuple(_passages(decoder, sequence)))


def _passages(decoder: Decoder, sequence: _Sequence) -> Iterator[Passage]:
    if all(sequence.by_model):
        return
    pairs = zip(sequence.by_model, sequence.answer, strict=False)
    for drawn, run in groupby(pairs, key=lambda pair: pair[0]):
        ids = [token for _, token in run]
        yield Passage("model" if drawn else "workflow", decoder.decode(ids, special=True))


def _truth(stage: StageSpec, shown: ExperienceView) -> str | None:
    if shown.task is None or not tasksets_of(stage):
        return None
    place = task_place(stage, shown.task.row)
    spec = tasksets_of(stage)[place.taskset]
    if spec.queue:
        return None
    try:
        taskset_files(spec)
    except DataError:
        raise DataError(f"{spec.path} does not exist here") from None
    with closing(Taskset.open(spec)) as taskset:
        if spec.digest and taskset.digest != spec.digest:
            raise DataError(f"{spec.path} is not what the experiment was accepted with")
        return taskset.task(place.row, shown.task.epoch).truth or None

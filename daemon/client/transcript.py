"""`Transcript`: an experience as text, by the tokenizer in the model's folder, and the truth of its row.

Both are read here, where the person is: loading a tokenizer takes seconds, which no daemon has. What cannot be read is
missing, and a note says why.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from rftd.daemon.client.client import Client
from rftd.daemon.output.terminal import one_line
from rftd.daemon.views.events import events
from rftd.daemon.views.experiences import ExperienceView
from rftd.ops.decoding import converted
from rftd.ops.errors import DataError, RftdError
from rftd.streams.spec import ExperimentSpec, StageSpec
from rftd.streams.split_submission import joined
from rftd.streams.stage_tasks import task_place, tasksets_of
from rftd.workers.tasksets.stage_tokenizer import Decoder, stage_decoder
from rftd.workers.tasksets.taskset import Taskset

_SUBMISSIONS = 100
"""Submissions of one experiment that are looked at: one, or its two halves, each maybe more than once."""


@dataclass(frozen=True, slots=True)
class TextTurn:
    """A prompt and its answer."""

    prompt: str
    bare_prompt: str
    """The prompt without the marks of the chat template."""
    answer: str


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
        turns = tuple(_turn(decoder, *ids) for ids in _sequences(shown))
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


def _ids(shown: ExperienceView) -> tuple[IdTurn, ...]:
    return tuple(IdTurn(tuple(prompt), tuple(answer)) for prompt, answer in _sequences(shown))


def _sequences(shown: ExperienceView) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """The ids of each prompt and of its answer."""
    tokens = shown.tokens or []
    if not shown.steps:
        yield tokens[: shown.experience.prompt_tokens], tokens[shown.experience.prompt_tokens :]
    first = 0
    for step in shown.steps:
        middle = first + step.prompt_tokens
        yield tokens[first:middle], tokens[middle : first + step.tokens]
        first += step.tokens


def _turn(decoder: Decoder, prompt: Sequence[int], answer: Sequence[int]) -> TextTurn:
    whole = decoder.decode(answer, special=True)
    said = decoder.decode(answer)
    # The mark that ends an answer is none of it; marks between the turns of a conversation are.
    bare = decoder.decode(prompt)
    return TextTurn(decoder.decode(prompt, special=True), bare, said if whole.startswith(said) else whole)


def _truth(stage: StageSpec, shown: ExperienceView) -> str | None:
    if shown.task is None or not tasksets_of(stage):
        return None
    place = task_place(stage, shown.task.row)
    spec = tasksets_of(stage)[place.taskset]
    if not Path(spec.path).exists():
        raise DataError(f"{spec.path} does not exist here")
    with closing(Taskset.open(spec)) as taskset:
        if spec.digest and taskset.digest != spec.digest:
            raise DataError(f"{spec.path} is not what the experiment was accepted with")
        return taskset.task(place.row, shown.task.epoch).truth or None

"""`Transcript`: an experience as text, by the tokenizer in the model's folder, and the truth of its row.

Both are read here, by the client: loading a tokenizer takes seconds, too long for a daemon. Unreadable parts are
missing, and a note gives the reason.
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
"""Maximum number of submissions of one experiment considered: one, or its two halves, each possibly repeated."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of an answer, written by the model or the workflow."""

    by: Literal["model", "workflow"]
    text: str


@dataclass(frozen=True, slots=True)
class TextTurn:
    """A prompt and its answer as text, with the answer's pieces by writer."""

    prompt: str
    bare_prompt: str
    """The prompt without the marks of the chat template."""
    answer: str
    passages: tuple[Passage, ...] = ()
    """The answer in pieces if the workflow wrote some, for example a tool's output; empty if the model wrote all."""


@dataclass(frozen=True, slots=True)
class IdTurn:
    """The token ids of a prompt and of its answer."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Transcript:
    """An experience as text, with notes about missing parts."""

    turns: tuple[TextTurn, ...] = ()
    """One turn, or one per step of a rollout in several steps. Empty without a tokenizer."""
    ids: tuple[IdTurn, ...] = ()
    """Each turn as token ids, if there is no text."""
    truth: str | None = None
    """The right answer in the task's row; None if missing or unreadable."""
    pieces: tuple[str, ...] = ()
    """The text of each single id after the first prompt; empty unless requested."""
    notes: tuple[str, ...] = ()
    """Reasons for all missing parts."""


def specification(client: Client, id: str) -> ExperimentSpec | None:
    """Returns the experiment's specification from the log; None if the log has none any more."""
    page = client.ask(events, name=id, type=["experiment.submitted"], limit=_SUBMISSIONS, full=True).value
    if not page.items:
        return None
    spec, *more = (converted(submission.payload["spec"], ExperimentSpec) for submission in page.items)
    for half in more:
        joined_spec = joined(spec, half)
        spec = joined_spec if isinstance(joined_spec, ExperimentSpec) else spec
    return spec


def transcript_of(spec: ExperimentSpec | None, shown: ExperienceView, *, pieces: bool = False) -> Transcript:
    """Returns the text of an experience with its tokens; `pieces`: also the text of each single token.

    Blocks while files are read.
    """
    number = shown.experience.stage
    if spec is None or number >= len(spec.stages):
        why = "the log keeps no specification of its experiment: ids only, and no truth"
        return Transcript(ids=_ids(shown), notes=(why,))
    stage = spec.stages[number]
    notes = []
    turns: tuple[TextTurn, ...] = ()
    single_texts: tuple[str, ...] = ()
    truth = None
    try:
        decoder = stage_decoder(stage)
        turns = experience_turns(decoder, shown)
        if pieces:
            response = (shown.tokens or [])[shown.experience.prompt_tokens :]
            single_texts = tuple(decoder.decode([token], special=True) for token in response)
    except RftdError as error:
        notes.append(f"no text, only ids: {one_line(error.what)}")
    try:
        truth = _truth(stage, shown)
    except RftdError as error:
        notes.append(f"no truth: {one_line(error.what)}")
    return Transcript(turns, () if turns else _ids(shown), truth, single_texts, tuple(notes))


def experience_turns(decoder: Decoder, shown: ExperienceView) -> tuple[TextTurn, ...]:
    """Returns the prompts and answers of an experience with its tokens."""
    return tuple(_turn(decoder, sequence) for sequence in _sequences(shown))


def _ids(shown: ExperienceView) -> tuple[IdTurn, ...]:
    return tuple(IdTurn(tuple(sequence.prompt), tuple(sequence.answer)) for sequence in _sequences(shown))


class _Sequence(NamedTuple):
    """The ids of a prompt and of its answer."""

    prompt: Sequence[int]
    answer: Sequence[int]
    by_model: Sequence[bool]
    """True for each id of the answer sampled by the model."""


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
    """Returns True for each sampled response token; without recorded settings, for each trained one."""
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
    plain_text = decoder.decode(answer)
    # The answer's end mark is not part of it; marks between the turns of a conversation are.
    bare = decoder.decode(prompt)
    text = plain_text if whole.startswith(plain_text) else whole
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
    task_row = task_place(stage, shown.task.row)
    spec = tasksets_of(stage)[task_row.taskset]
    if spec.queue:
        return None
    try:
        taskset_files(spec)
    except DataError:
        raise DataError(f"{spec.path} does not exist here") from None
    with closing(Taskset.open(spec)) as taskset:
        if spec.digest and taskset.digest != spec.digest:
            raise DataError(f"{spec.path} is not what the experiment was accepted with")
        return taskset.task(task_row.row, shown.task.epoch).truth or None

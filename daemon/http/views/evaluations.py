"""The answers of evaluations: of one version, against another one, and of one held-out row through all versions."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, NamedTuple
from uuid import UUID

import msgspec
from msgspec import Meta

from rftd.daemon.http.views.route import After, Daemon, Int, Name, Offset, Step, Word, read
from rftd.ops.errors import NotFoundError
from rftd.storage.queries.evaluations import evaluation_of, evaluations_of, folder_of, lease_holders, score_places
from rftd.storage.queries.steps import EvalRow

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

    from rftd.storage.files.answered_rows import AnsweredRows
    from rftd.storage.queries.evaluations import ScorePlace
    from rftd.streams.figures.eval_answers import EvalAnswer

_VERSIONS: Final = 200
"""Number of newest versions searched for a row."""
Answers = Annotated[int, Meta(ge=1, le=100)]
"""Number of answers on a page, from 1 to 100."""
Which = Literal["row", "worst", "best", "changed"]
"""Order of answers: by row, from the lowest or the highest reward on, or changed ones, lost ones first."""


class AnswerView(msgspec.Struct, frozen=True, kw_only=True):
    """One answer to a held-out row, with its reward and, if kept, its text."""

    row: int
    """Row of the held-out taskset."""
    attempt: int
    """Number of the answer among those to the row, from 0."""
    reward: float
    """Reward of the answer."""
    right: bool | None
    """True for a right answer; null if the reward does not tell."""
    parts: dict[str, float]
    """Named parts of the reward."""
    finish: str
    """End of the answer, as reported by the engine."""
    tokens: int
    """Length of the answer in tokens."""
    kept: bool
    """False: of this answer only scores are kept, no text."""
    prompt: str
    """Prompt of the row."""
    text: str
    """The answer, or its beginning."""
    chars: int
    """Length of the whole answer in characters."""
    truth: str
    """Reference answer of the row."""
    extracted: str | None = None
    """The answer read by the reward, or its beginning; null without a note."""
    category: str
    """Category of the row; empty without one."""
    error: str
    """Reason for the missing answer."""


class PairedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer, and the answer of the compared version to the same row."""

    answer: AnswerView
    """Answer of the evaluated version."""
    before: AnswerView | None
    """Answer of the compared version to the same row; null without one."""


class VersionComparison(msgspec.Struct, frozen=True, kw_only=True):
    """A version against an earlier one, over the rows answered by both."""

    version: int
    """The compared, earlier version."""
    won: int
    """Number of rows with a higher mean reward than before."""
    lost: int
    """Number of rows with a lower mean reward than before."""
    same: int
    """Number of rows with the same mean reward as before."""
    difference: float
    """Mean change of a row's reward."""
    p: float
    """Probability of such an uneven division of won and lost rows by chance alone (sign test, two-sided)."""


class EvaluationPage(msgspec.Struct, frozen=True, kw_only=True):
    """One evaluation with some of its answers, and the comparison with another version."""

    evaluation: EvalRow
    """The evaluation whose answers are listed."""
    comparison: VersionComparison | None
    """Comparison with the version named in the request; null without such a version."""
    answers: int
    """Number of all answers."""
    kept: int
    """Number of answers with kept texts."""
    items: list[PairedAnswer]
    """Answers on this page, each with the answer of the compared version."""
    next: int | None
    """`offset` of the next page; null at the end."""
    notes: list[str]
    """Reasons for missing parts."""


class RowAnswersView(msgspec.Struct, frozen=True, kw_only=True):
    """The answers to a held-out row by one weight version and generation."""

    version: int
    """The evaluated weight version."""
    generation: int
    """Generation of the evaluated weight version."""
    answers: list[AnswerView]
    """Answers of the version to the row."""


class HeldOutRow(msgspec.Struct, frozen=True, kw_only=True):
    """One held-out row through the versions evaluated on it."""

    taskset: str
    """Name of the held-out taskset."""
    row: int
    """Number of the row."""
    items: list[RowAnswersView]
    """Answers to the row, by weight version."""
    notes: list[str]
    """Reasons for missing texts."""


@read("/v1/experiments/{name}/evals/{version}", EvaluationPage, tag="history", name="evaluation")
async def evaluation(
    daemon: Daemon,
    name: Name,
    version: Step,
    taskset: Word = None,
    order: Which = "row",
    against: Int = None,
    limit: Answers = 20,
    offset: Offset = 0,
    after: After = None,
) -> EvaluationPage:
    """The answers of one weight version to held-out rows; with `against`, beside the answers of another version."""
    id = await daemon.find(name, after)
    async with daemon.read() as connection:
        rows = await evaluations_of(connection, id, taskset=taskset)
        chosen = evaluation_of(rows, version)
        compared_with = None if against is None else evaluation_of(rows, against, field="against")
        now_places = await _answer_places(connection, chosen)
        before_places = None if compared_with is None else await _answer_places(connection, compared_with)
    now = await _read(daemon, now_places)
    before = None if before_places is None else await _read(daemon, before_places)
    pairs = _ordered(now, before, order)
    shown = pairs[offset : offset + limit]
    return EvaluationPage(
        evaluation=chosen,
        comparison=None if compared_with is None or before is None else _compared(now, before, compared_with.version),
        answers=len(now.answers),
        kept=len(now.kept),
        items=[PairedAnswer(answer=_view(now, key), before=_before(before, key)) for key in shown],
        next=offset + limit if offset + limit < len(pairs) else None,
        notes=[*now.notes, *([] if before is None else before.notes)],
    )


@read("/v1/experiments/{name}/held-out/{row}", HeldOutRow, tag="history", name="held_out")
async def held_out(daemon: Daemon, name: Name, row: Step, taskset: Word = None, after: After = None) -> HeldOutRow:
    """One held-out row with the answers of each version."""
    id = await daemon.find(name, after)
    async with daemon.read() as connection:
        rows = (await evaluations_of(connection, id, taskset=taskset))[-_VERSIONS:]
        places = [await _answer_places(connection, evaluation) for evaluation in rows]
    row_answers: list[RowAnswersView] = []
    notes: list[str] = []
    for evaluation, version_places in zip(rows, places, strict=True):
        holding = [score_place for score_place in version_places.scores if score_place.row_start <= row][-1:]
        answered = await _read(daemon, version_places._replace(scores=holding))
        answers = [_view(answered, key) for key in sorted(answered.answers) if key[0] == row]
        notes += [f"version {evaluation.version}: {note}" for note in answered.notes]
        if answers:
            version = RowAnswersView(version=evaluation.version, generation=evaluation.generation, answers=answers)
            row_answers.append(version)
    if not row_answers and not notes:
        raise NotFoundError(f"no answer to row {row} of {rows[-1].taskset!r}", field="row", fix="rows count from 0")
    return HeldOutRow(taskset=rows[-1].taskset, row=row, items=row_answers, notes=notes)


class _AnswerPlaces(NamedTuple):
    """Location of the stored answers of an evaluation."""

    folder: str | None
    """Folder of the experiment."""
    scores: list[ScorePlace]
    """Positions of the scores in the log, by ranges of rows."""
    holders: dict[UUID, UUID]
    """Worker of each lease of the evaluation."""


async def _answer_places(connection: AsyncConnection, row: EvalRow) -> _AnswerPlaces:
    """Reads the location of an evaluation's stored answers from the tables."""
    return _AnswerPlaces(
        folder=await folder_of(connection, row.id),
        scores=await score_places(connection, row.id),
        holders=await lease_holders(connection, row.id),
    )


async def _read(daemon: Daemon, answer_places: _AnswerPlaces) -> AnsweredRows:
    """Reads an evaluation's scores from the log, and the kept texts from the artifacts of the experiment's folder."""
    from rftd.storage.files.answered_rows import answered_rows
    from rftd.storage.files.artifacts import ArtifactStore

    store = None if answer_places.folder is None else ArtifactStore(Path(answer_places.folder) / "artifacts")
    return await answered_rows(daemon.log, answer_places.scores, store, answer_places.holders)


def _ordered(now: AnsweredRows, before: AnsweredRows | None, order: Which) -> list[tuple[int, int]]:
    """Returns rows and attempts of the answers in display order; of equal ones, answers with a text come first."""
    keys = sorted(now.answers)
    if order == "row":
        return keys
    if order == "changed":
        change = {key: _change(now, before, key) for key in keys}
        return sorted([key for key in keys if change[key]], key=lambda key: change[key] or 0.0)
    sign = 1 if order == "worst" else -1
    return sorted(keys, key=lambda key: (sign * now.answers[key].reward, key not in now.kept))


def _change(now: AnsweredRows, before: AnsweredRows | None, key: tuple[int, int]) -> float | None:
    """Returns the change of an answer's reward; None without the earlier answer."""
    old = None if before is None else before.answers.get(key)
    return None if old is None else now.answers[key].reward - old.reward


def _compared(now: AnsweredRows, before: AnsweredRows, version: int) -> VersionComparison:
    """Returns the numbers of answers won and lost against an earlier version, the mean difference, and a sign test."""
    from rftd.streams.figures.estimators import sign_test

    changes = list(_changes(now, before))
    won = sum(change > 0 for change in changes)
    lost = sum(change < 0 for change in changes)
    return VersionComparison(
        version=version,
        won=won,
        lost=lost,
        same=len(changes) - won - lost,
        difference=sum(changes) / len(changes) if changes else 0.0,
        p=sign_test(won, lost),
    )


def _changes(now: AnsweredRows, before: AnsweredRows) -> Iterable[float]:
    """Yields the change of each row answered by both."""
    for row in now.rows():
        new = now.reward_of(row)
        old = before.reward_of(row)
        if new is not None and old is not None:
            yield new - old


def _before(before: AnsweredRows | None, key: tuple[int, int]) -> AnswerView | None:
    """Returns the earlier version's answer under a key; None without one."""
    return None if before is None or key not in before.answers else _view(before, key)


def _view(answered: AnsweredRows, key: tuple[int, int]) -> AnswerView:
    """Returns the answer under a key, row and attempt, for people."""
    answer: EvalAnswer = answered.answers[key]
    return AnswerView(
        row=answer.row,
        attempt=answer.attempt,
        reward=answer.reward,
        right=answer.right,
        parts=dict(answer.parts),
        finish=answer.finish,
        tokens=answer.tokens,
        kept=key in answered.kept,
        prompt=answer.prompt,
        text=answer.text,
        chars=answer.chars,
        truth=answer.truth,
        extracted=answer.extracted,
        category=answer.category,
        error=answer.error,
    )

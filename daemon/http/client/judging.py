"""`judged` scores the recorded answers of an evaluation by another reward: here, and without generating anything."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any, Final

import msgspec
import numpy as np

from rftd.daemon.cli.output.terminal import one_line
from rftd.daemon.http.client.client import Client
from rftd.daemon.http.client.transcript import specification
from rftd.daemon.http.views.evaluations import AnswerView, EvaluationPage, evaluation
from rftd.ops.errors import DataError, RftdError, RolloutError, UsageError
from rftd.storage.queries.steps import EvalRow
from rftd.streams.figures.estimators import bootstrap, sign_test
from rftd.streams.spec.spec import ExperimentSpec
from rftd.workers.datasets.files import taskset_files
from rftd.workers.datasets.message import Message
from rftd.workers.datasets.task import Task, TaskSource
from rftd.workers.datasets.taskset import Taskset
from rftd.workers.workflows.rewards.scorer import Scorer, open_scorer

_PAGE: Final = 100
_RESAMPLES: Final = 2000


class JudgedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer with its new reward beside the recorded one."""

    answer: AnswerView
    reward: float
    parts: dict[str, float]


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """The recorded answers of one evaluation by another reward."""

    evaluation: EvalRow
    reward: str
    answers: int
    """All answers of the evaluation."""
    judged: int
    score: float | None
    """The mean new reward of the judged answers; None if no answer was judged."""
    low: float | None
    """The ends of its 95 % interval, by a bootstrap over the rows."""
    high: float | None
    recorded: float | None
    """The mean recorded reward of the same answers."""
    parts: dict[str, float]
    """The means of the new reward's named parts."""
    won: int
    """Rows whose mean reward is higher by the new reward than by the recorded one."""
    lost: int
    same: int
    p: float
    """The probability of so uneven a division of won and lost rows by chance alone (sign test, two-sided)."""
    items: list[JudgedAnswer]
    """The judged answers, ordered by row and attempt."""
    notes: list[str]
    """The reasons for what was not judged."""


def judged(
    client: Client, name: str, version: int, taskset: str | None, reward: str, arguments: Mapping[str, Any]
) -> Judgement:
    """The judgement of one version's answers to a held-out taskset.

    Raises ConfigError for the reward's name or arguments, UsageError for one that asks other models.
    """
    scorer = open_scorer(reward, arguments)
    if scorer.asks_models:
        raise UsageError(
            f"reward {reward!r} asks auxiliary models, which only a run has",
            field="--reward",
            fix="measure with it in an experiment: mode: bench",
        )
    pages = list(_pages(client, name, version, taskset))
    row = pages[0].evaluation
    notes = list(pages[0].notes)
    answers = [pair.answer for page in pages for pair in page.items]
    whole = [answer for answer in answers if _is_whole(answer)]
    with ExitStack() as stack:
        rows = _rows(specification(client, name), row, stack)
        if rows is None:
            notes.append("the rows are not here, so the reward sees their prompts and truths alone")
        items = asyncio.run(_scored(scorer, row, whole, rows, notes))
    if left_out := len(answers) - len(whole):
        notes.append(f"{left_out} of {len(answers)} answers have no text, or not all of it: they were not judged")
    return _judgement(row, reward, len(answers), items, notes)


def _pages(client: Client, name: str, version: int, taskset: str | None) -> Iterator[EvaluationPage]:
    offset: int | None = 0
    while offset is not None:
        page = client.ask(evaluation, name=name, version=version, taskset=taskset, limit=_PAGE, offset=offset).value
        yield page
        offset = page.next


def _is_whole(answer: AnswerView) -> bool:
    return answer.kept and not answer.error and len(answer.text) == answer.chars


def _rows(spec: ExperimentSpec | None, row: EvalRow, stack: ExitStack) -> TaskSource | None:
    """The rows of the held-out taskset as they were accepted; None if its files are not here."""
    if spec is None or row.stage >= len(spec.stages):
        return None
    held_out = next((taskset for taskset in spec.stages[row.stage].evals if taskset.name == row.taskset), None)
    if held_out is None:
        return None
    try:
        taskset_files(held_out)
        rows = stack.enter_context(closing(Taskset.open(held_out)))
    except (RftdError, OSError):
        return None
    return None if held_out.digest and rows.digest != held_out.digest else rows


async def _scored(
    scorer: Scorer, row: EvalRow, answers: Sequence[AnswerView], rows: TaskSource | None, notes: list[str]
) -> list[JudgedAnswer]:
    items: list[JudgedAnswer] = []
    errors: list[RftdError] = []
    for answer in answers:
        try:
            task = _task(row, answer) if rows is None else rows.task(answer.row)
            result = await scorer.score(f"{task.reply_prefix or ''}{answer.text}", task)
        except (RolloutError, DataError) as error:
            errors.append(error)
            continue
        items.append(JudgedAnswer(answer=answer, reward=result.value, parts=result.parts))
    if errors:
        notes.append(f"{len(errors)} answers were not judged; the first: {one_line(errors[0].what)}")
    return items


def _task(row: EvalRow, answer: AnswerView) -> Task:
    return Task(
        taskset=row.taskset,
        row=answer.row,
        epoch=0,
        prompt=answer.prompt,
        messages=(Message("user", answer.prompt),),
        truth=answer.truth,
        workflow="",
    )


def _judgement(row: EvalRow, reward: str, answers: int, items: list[JudgedAnswer], notes: list[str]) -> Judgement:
    by_row: dict[int, list[JudgedAnswer]] = {}
    for item in items:
        by_row.setdefault(item.answer.row, []).append(item)
    new = [_mean([item.reward for item in judged_row]) for judged_row in by_row.values()]
    old = [_mean([item.answer.reward for item in judged_row]) for judged_row in by_row.values()]
    won = sum(one > other for one, other in zip(new, old, strict=True))
    lost = sum(one < other for one, other in zip(new, old, strict=True))
    low, high = _interval(new) if new else (None, None)
    names = sorted({name for item in items for name in item.parts})
    return Judgement(
        evaluation=row,
        reward=reward,
        answers=answers,
        judged=len(items),
        score=_mean([item.reward for item in items]) if items else None,
        low=low,
        high=high,
        recorded=_mean([item.answer.reward for item in items]) if items else None,
        parts={name: _mean([item.parts[name] for item in items if name in item.parts]) for name in names},
        won=won,
        lost=lost,
        same=len(new) - won - lost,
        p=sign_test(won, lost),
        items=items,
        notes=notes,
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _interval(means: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the mean over rows; the same whenever it is asked for."""
    values = np.asarray(means, dtype="f8")
    indices = np.random.Generator(np.random.PCG64(0)).integers(0, len(values), (_RESAMPLES, len(values)))
    return bootstrap(values, indices)

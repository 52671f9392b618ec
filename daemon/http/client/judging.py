"""`judged` scores the recorded answers of an evaluation by another reward, locally and without generating anything."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from rftd.daemon.cli.output.terminal import one_line
from rftd.daemon.http.client.client import Client
from rftd.daemon.http.client.specification import specification
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
from rftd.workers.workflows.source import source_name

_PAGE: Final = 100
"""Number of answers requested at once."""
_RESAMPLES: Final = 2000
"""Number of resamples of the bootstrap."""


class JudgedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer with its new reward beside the recorded one."""

    answer: AnswerView
    """The answer as recorded by the evaluation."""
    reward: float
    """Reward of the answer by the other reward function."""
    parts: dict[str, float]
    """Named parts of the new reward."""


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """The recorded answers of one evaluation by another reward."""

    evaluation: EvalRow
    """The evaluation whose answers are judged."""
    reward: str
    """Name of the reward function that judges the answers."""
    answers: int
    """Number of answers in the evaluation."""
    judged: int
    """Number of answers judged by the other reward function."""
    score: float | None
    """Mean new reward of the judged answers; None if none was judged."""
    low: float | None
    """Lower end of the score's 95 % interval, by a bootstrap over the rows; `high` is the upper end."""
    high: float | None
    """Upper end of the score's 95 % interval."""
    recorded: float | None
    """Mean recorded reward of the same answers."""
    parts: dict[str, float]
    """Means of the new reward's named parts."""
    won: int
    """Number of rows with a higher mean by the new reward than by the recorded one."""
    lost: int
    """Number of rows with a lower mean by the new reward."""
    same: int
    """Number of rows with equal means."""
    p: float
    """Probability of such an uneven division of won and lost rows by chance alone (sign test, two-sided)."""
    items: list[JudgedAnswer]
    """The judged answers, ordered by row and attempt."""
    notes: list[str]
    """Reasons for answers not judged."""


def judged(
    client: Client, name: str, version: int, taskset: str | None, reward: str, arguments: Mapping[str, Any]
) -> Judgement:
    """Judges one version's answers to a held-out taskset by a registered reward, or by a function `PATH.py:NAME`.

    Raises ConfigError for the reward's name or arguments, UsageError for a reward using other models.
    """
    source = source_name(reward)
    sources = None if source is None else {source.file: source_text(source.file)}
    scorer = open_scorer(reward, arguments, sources=sources)
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
    whole = [answer for answer in answers if _is_complete(answer)]
    with ExitStack() as stack:
        rows = _open_rows(specification(client, name), row, stack)
        if rows is None:
            notes.append("the rows are not here, so the reward sees their prompts and truths alone")
        judged_answers = asyncio.run(_score_answers(scorer, row, whole, rows, notes))
    if left_out := len(answers) - len(whole):
        notes.append(f"{left_out} of {len(answers)} answers have no text, or not all of it: they were not judged")
    return _judgement_of(row, reward, len(answers), judged_answers, notes)


def source_text(file: str) -> str:
    """Returns the text of a Python file named on the command line. Raises UsageError."""
    try:
        return Path(file).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}", field="--reward", fix="name a Python file") from None


def _pages(client: Client, name: str, version: int, taskset: str | None) -> Iterator[EvaluationPage]:
    """Yields the pages of an evaluation's answers."""
    offset: int | None = 0
    while offset is not None:
        page = client.ask(evaluation, name=name, version=version, taskset=taskset, limit=_PAGE, offset=offset).value
        yield page
        offset = page.next


def _is_complete(answer: AnswerView) -> bool:
    """True for an answer with its whole text and without an error."""
    return answer.kept and not answer.error and len(answer.text) == answer.chars


def _open_rows(spec: ExperimentSpec | None, row: EvalRow, stack: ExitStack) -> TaskSource | None:
    """Returns the rows of the held-out taskset; None if its files are not here, or differ from those accepted."""
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


async def _score_answers(
    scorer: Scorer, row: EvalRow, answers: Sequence[AnswerView], rows: TaskSource | None, notes: list[str]
) -> list[JudgedAnswer]:
    """Returns the answers with their new rewards; all failures together add one note to `notes`."""
    judged_answers: list[JudgedAnswer] = []
    errors: list[RftdError] = []
    for answer in answers:
        try:
            task = _task(row, answer) if rows is None else rows.task(answer.row)
            score = await scorer.score(f"{task.reply_prefix or ''}{answer.text}", task)
        except (RolloutError, DataError) as error:
            errors.append(error)
            continue
        judged_answers.append(JudgedAnswer(answer=answer, reward=score.value, parts=score.parts))
    if errors:
        notes.append(f"{len(errors)} answers were not judged; the first: {one_line(errors[0].what)}")
    return judged_answers


def _task(row: EvalRow, answer: AnswerView) -> Task:
    """Returns a task made of the answer's prompt and truth, for rows that are not here."""
    return Task(
        taskset=row.taskset,
        row=answer.row,
        epoch=0,
        prompt=answer.prompt,
        messages=(Message("user", answer.prompt),),
        truth=answer.truth,
        workflow="",
    )


def _judgement_of(
    row: EvalRow, reward: str, answers: int, judged_answers: list[JudgedAnswer], notes: list[str]
) -> Judgement:
    """Returns the judgement of an evaluation: means, interval, and rows won and lost by the new reward."""
    by_row: dict[int, list[JudgedAnswer]] = {}
    for judged_answer in judged_answers:
        by_row.setdefault(judged_answer.answer.row, []).append(judged_answer)
    new = [_mean([judged_answer.reward for judged_answer in judged_row]) for judged_row in by_row.values()]
    old = [_mean([judged_answer.answer.reward for judged_answer in judged_row]) for judged_row in by_row.values()]
    won = sum(new_mean > old_mean for new_mean, old_mean in zip(new, old, strict=True))
    lost = sum(new_mean < old_mean for new_mean, old_mean in zip(new, old, strict=True))
    low, high = _bootstrap_interval(new) if new else (None, None)
    names = sorted({name for judged_answer in judged_answers for name in judged_answer.parts})
    return Judgement(
        evaluation=row,
        reward=reward,
        answers=answers,
        judged=len(judged_answers),
        score=_mean([judged_answer.reward for judged_answer in judged_answers]) if judged_answers else None,
        low=low,
        high=high,
        recorded=_mean([judged_answer.answer.reward for judged_answer in judged_answers]) if judged_answers else None,
        parts={
            name: _mean([judged_answer.parts[name] for judged_answer in judged_answers if name in judged_answer.parts])
            for name in names
        },
        won=won,
        lost=lost,
        same=len(new) - won - lost,
        p=sign_test(won, lost),
        items=judged_answers,
        notes=notes,
    )


def _mean(rewards: Sequence[float]) -> float:
    """Returns the mean of at least one reward."""
    return sum(rewards) / len(rewards)


def _bootstrap_interval(means: Sequence[float]) -> tuple[float, float]:
    """Returns the 95 % interval of the mean over rows, by a bootstrap with a fixed seed."""
    row_means = np.asarray(means, dtype="f8")
    indices = np.random.Generator(np.random.PCG64(0)).integers(0, len(row_means), (_RESAMPLES, len(row_means)))
    return bootstrap(row_means, indices)

"""`judged_rollouts` scores recorded rollouts of an experiment by another reward, locally."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any, Final

import msgspec

from rftd.daemon.cli.output.terminal import one_line
from rftd.daemon.http.client.client import Client
from rftd.daemon.http.client.judging import source_text
from rftd.daemon.http.client.specification import specification
from rftd.daemon.http.views import experiences
from rftd.daemon.http.views import text as text_views
from rftd.daemon.http.views.experiences import ExperienceView
from rftd.daemon.http.views.text import ExperienceText, TextTurn
from rftd.ops.errors import NotFoundError, RftdError, RolloutError, UsageError
from rftd.streams.spec.spec import ExperimentSpec
from rftd.streams.spec.stage_tasks import task_place, tasksets_of
from rftd.workers.datasets.files import taskset_files
from rftd.workers.datasets.message import Message
from rftd.workers.datasets.task import Task, TaskSource
from rftd.workers.datasets.taskset import Taskset
from rftd.workers.generation.response import Response
from rftd.workers.workflows.rewards.scorer import Scorer, open_scorer
from rftd.workers.workflows.source import source_name

_CHARS: Final = 10_000_000
"""Maximum characters of a text requested: more than any has."""
_PAGE: Final = 100
"""Default maximum number of judged rollouts of a step."""


class JudgedRollout(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded rollout with its new reward beside the recorded one."""

    experience: str
    """Id of the experience."""
    row: int | None
    """Row of the task; None if unknown."""
    prompt: str
    """Prompt of the rollout's task."""
    response: str
    """The last answer, as scored."""
    truth: str
    """Right answer in the task's row; empty if there is none."""
    recorded: float
    """Reward recorded for the rollout."""
    recorded_parts: dict[str, float]
    """Named parts of the recorded reward."""
    reward: float | None
    """New reward; None where the reward failed."""
    parts: dict[str, float]
    """Named parts of the new reward."""
    extracted: str | None
    """Answer extracted by the new reward; None if it extracts none."""
    error: str = ""
    """Why the reward failed; empty if it did not."""


class JudgedRollouts(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded rollouts by another reward."""

    reward: str
    """Name of the reward function that judges the rollouts."""
    items: list[JudgedRollout]
    """The rollouts, each with its recorded and its new reward."""
    recorded: float | None
    """Mean recorded reward of the judged rollouts; None if none was judged."""
    judged: float | None
    """Mean new reward."""
    notes: list[str]
    """Reasons for rollouts not judged, and for missing columns."""


def judged_rollouts(
    client: Client,
    name: str,
    reward: str,
    arguments: Mapping[str, Any],
    *,
    experience: str | None = None,
    step: int | None = None,
    limit: int = _PAGE,
) -> JudgedRollouts:
    """Judges one experience, or those trained in a step, by a registered reward or a function `PATH.py:NAME`.

    Raises ConfigError for the reward's name or arguments, NotFoundError for a step without experiences.
    """
    source = source_name(reward)
    sources = None if source is None else {source.file: source_text(source.file)}
    scorer = open_scorer(reward, arguments, sources=sources)
    if scorer.asks_models:
        problem = f"reward {reward!r} asks auxiliary models, which only a run has"
        raise UsageError(problem, field="--reward", fix="try it on a task: rftd try FILE --reward")
    ids = [experience] if experience is not None else _ids_of_step(client, name, step or 0, limit)
    notes: list[str] = []
    with ExitStack() as stack:
        rows = RecordedTasks(specification(client, name), stack, notes)
        shown: list[tuple[ExperienceView, ExperienceText]] = []
        for id in ids:
            text = client.ask(text_views.experience_text, name=name, experience=id, chars=_CHARS).value
            if text.rollout.turns:
                view = client.ask(experiences.experience, name=name, experience=id, tokens=True).value
                shown.append((view, text))
            else:
                notes += [one_line(note) for note in text.rollout.notes or ["no text"]]
        judged = asyncio.run(_score_rollouts(scorer, rows, shown))
    scored = [(rollout.recorded, rollout.reward) for rollout in judged if rollout.reward is not None]
    return JudgedRollouts(
        reward=reward,
        items=judged,
        recorded=sum(recorded for recorded, _ in scored) / len(scored) if scored else None,
        judged=sum(new for _, new in scored) / len(scored) if scored else None,
        notes=list(dict.fromkeys(notes)),
    )


def _ids_of_step(client: Client, name: str, step: int, limit: int) -> list[str]:
    """Returns the ids of experiences trained in a step, at most `limit`. Raises NotFoundError if there is none."""
    page = client.ask(experiences.experiences, name=name, first_step=step, last_step=step, limit=limit).value
    if not page.items:
        raise NotFoundError(f"no experience was trained in step {step}", fix=f"see rftd steps {name}")
    return [row.id for row in page.items]


class RecordedTasks:
    """The tasks of recorded rollouts: rows of the datasets as accepted, or what the API shows of them."""

    def __init__(self, spec: ExperimentSpec | None, stack: ExitStack, notes: list[str]) -> None:
        """`stack` closes the datasets; `notes` gets the reason for missing rows."""
        self._spec = spec
        self._stack = stack
        self._notes = notes
        self._opened: dict[tuple[int, int], TaskSource | None] = {}
        """Rows of each stage's taskset by (stage, number); None where the accepted rows are not here."""

    def task(self, text: ExperienceText) -> Task:
        """Returns the task of a rollout. Raises DataError for an unreadable row."""
        row = text.task
        stage_number = text.rollout.experience.stage
        if row is not None and self._spec is not None and tasksets_of(self._spec.stages[stage_number]):
            row_of_taskset = task_place(self._spec.stages[stage_number], row.row)
            rows = self._open_rows(self._spec, stage_number, row_of_taskset.taskset)
            if rows is not None:
                return rows.task(row_of_taskset.row, row.epoch)
        turns = text.rollout.turns
        messages = tuple(Message(message.role, message.content, message.extra) for message in text.messages)
        return Task(
            taskset="",
            row=0 if row is None else row.row,
            epoch=0 if row is None else row.epoch,
            prompt=messages[-1].content if messages else (turns[0].bare_prompt if turns else ""),
            messages=messages,
            truth=text.truth or "",
            workflow="",
        )

    def _open_rows(self, spec: ExperimentSpec, stage: int, number: int) -> TaskSource | None:
        """Opens the rows of a taskset, if unchanged since the acceptance; else returns None, with a note."""
        if (stage, number) not in self._opened:
            taskset = tasksets_of(spec.stages[stage])[number]
            rows: TaskSource | None = None
            try:
                taskset_files(taskset)
                opened = self._stack.enter_context(closing(Taskset.open(taskset)))
                rows = opened if not taskset.digest or opened.digest == taskset.digest else None
            except (RftdError, OSError):
                rows = None
            if rows is None:
                self._notes.append("the rows are not here, so the reward sees their prompts and truths alone")
            self._opened[stage, number] = rows
        return self._opened[stage, number]


async def _score_rollouts(
    scorer: Scorer,
    rows: RecordedTasks,
    shown: Sequence[tuple[ExperienceView, ExperienceText]],
) -> list[JudgedRollout]:
    """Returns the rollouts with their new rewards; a failing reward leaves its error. Raises DataError for an
    unreadable row.
    """
    judged: list[JudgedRollout] = []
    for view, text in shown:
        task = rows.task(text)
        answer = _last_answer(text.rollout.turns[-1])
        row = text.rollout.experience
        recorded: dict[str, Any] = {
            "experience": row.id,
            "row": None if text.task is None else text.task.row,
            "prompt": task.prompt,
            "response": answer,
            "truth": task.truth,
            "recorded": row.reward,
            "recorded_parts": {part: value for part, value in row.metrics.items() if value is not None},
        }
        try:
            scored = await scorer.score((task.reply_prefix or "") + answer, task, turns=(_response(view, answer),))
        except RolloutError as error:
            judged.append(JudgedRollout(**recorded, reward=None, parts={}, extracted=None, error=one_line(error.what)))
            continue
        judged.append(
            JudgedRollout(**recorded, reward=scored.value, parts=dict(scored.parts), extracted=scored.extracted)
        )
    return judged


def _last_answer(turn: TextTurn) -> str:
    """Returns the text drawn last in a turn, without its end mark."""
    drawn = [passage.text for passage in turn.parts if passage.by == "model"]
    if len(turn.parts) <= 1 or not drawn:
        return turn.answer
    last = drawn[-1]
    return next((last[:end] for end in range(len(last), 0, -1) if turn.answer.endswith(last[:end])), last)


def _response(view: ExperienceView, text: str) -> Response:
    """Returns the last answer of a recorded rollout, for rewards that read its tokens or its end."""
    tokens = view.tokens or []
    mask = view.loss_mask or []
    start = len(mask)
    while start and mask[start - 1]:
        start -= 1
    prompt = len(tokens) - len(mask) + start
    return Response(
        text=text,
        prompt=tuple(tokens[:prompt]),
        tokens=tuple(tokens[prompt:]),
        logprobs=tuple((view.logprobs or [])[start:]),
        spans=(),
        finish=view.experience.finish,
    )

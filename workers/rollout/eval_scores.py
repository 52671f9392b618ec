"""The scores of a range of held-out rows: rewards, right answers, agreement, and stored texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from rftd.ops import limits
from rftd.ops.errors import DataError, RftdError, explain
from rftd.streams.events.experience import CategoryScore, EvalScored, RowAnswers
from rftd.streams.events.step import PROMPTS_CUT_ROWS
from rftd.streams.events.task import EvalLeased
from rftd.streams.figures.eval_answers import EvalAnswer, kept_places
from rftd.streams.figures.reward_parts import part_sums
from rftd.streams.log.arrays import Array
from rftd.workers.datasets.record import DatasetRecord
from rftd.workers.datasets.task import Task
from rftd.workers.datasets.taskset import Taskset
from rftd.workers.datasets.tokenizer import Tokenizer
from rftd.workers.generation.response import PROMPT_TRUNCATED
from rftd.workers.weights.channel import WeightsRef
from rftd.workers.workflows.result import RolloutResult
from rftd.workers.workflows.rewards.answer import agree, answer_of, visible
from rftd.workers.workflows.rewards.number import Quantity, parse_quantity
from rftd.workers.workflows.rewards.reward import extracted_note
from rftd.workers.workflows.rewards.words import closing, only_quantity

RIGHT_PARTS: Final = ("accuracy", "acc", "correct", "right")
"""Names of reward parts that tell right answers from wrong ones; the first name present in a reward is used."""
_RIGHT: Final = 1.0
"""Minimum value of that part for a right answer."""
_CATEGORY_CHARS: Final = 64
"""Maximum characters of a category's name."""
_MOST_CATEGORIES: Final = 64
"""Categories counted in one range; rows of further ones are in none."""


class ScoredRows:
    """The answered held-out rows of one lease, as scores and as texts."""

    def __init__(
        self,
        lease: EvalLeased,
        taskset: Taskset,
        answers: Sequence[RolloutResult | RftdError],
        *,
        tries: int,
        tokenizer: Tokenizer,
    ) -> None:
        """`answers` are the `tries` finished or failed rollouts of each row, row by row."""
        self._lease = lease
        self._taskset = taskset
        self._answers = answers
        self._tries = tries
        self._tokenizer = tokenizer
        self._right = right_answers(answers)
        """True for each right answer, False for each wrong one; None if the reward cannot tell."""
        self._tasks = {row: self._task_of(row) for row in range(lease.row_start, lease.row_end)}
        """Task of each row; None for a row that is no task."""

    def scores(self, weights: WeightsRef) -> EvalScored:
        """Returns the event with the rows' scores, without texts; a failed answer scores 0 and is counted."""
        lease = self._lease
        finished = [answer for answer in self._answers if isinstance(answer, RolloutResult)]
        failed = len(self._answers) - len(finished)
        return EvalScored(
            eval=lease.eval,
            lease=lease.lease,
            stage=lease.stage,
            taskset=lease.taskset,
            row_start=lease.row_start,
            version=weights.version,
            generation=weights.generation,
            rewards=Array.of([_reward_of(answer) for answer in self._answers], "f4"),
            tokens=Array.of([_length_of(answer) for answer in self._answers], "u4"),
            metrics={"failed_rows": float(failed)} | _cut_prompts(finished),
            reward_parts=part_sums(answer.metrics for answer in finished),
            auxiliary=self._judge_texts(),
            tries=self._tries,
            right=None if self._right is None else Array.of(self._right, "u1"),
            votes=Array.of(self._votes(), "u4") if self._tries > 1 else None,
            categories=self._categories(),
        )

    def texts(self) -> list[EvalAnswer]:
        """Returns the answers to be stored as texts, each cut if together they would be too large."""
        # A proportional part of the whole evaluation's texts, because no lease sees all of its rows.
        rows = len(self._taskset) * self._tries
        max_answers = max(1, limits.EVAL_ANSWERS * len(self._answers) // max(1, rows))
        rewards = [_reward_of(answer) for answer in self._answers]
        names = [f"{self._taskset.digest}/{row}/{attempt}" for row, attempt in self._attempts()]
        chosen = kept_places(rewards, names, max_answers)
        chars = min(limits.EVAL_ANSWER_CHARS, limits.EVAL_ANSWERS_CHARS // (3 * len(chosen))) if chosen else 0
        places = list(self._attempts())
        return [self._stored_text(number, *places[number], chars) for number in chosen]

    def _attempts(self) -> Iterator[tuple[int, int]]:
        """Yields the row and the attempt of each answer."""
        for row in range(self._lease.row_start, self._lease.row_end):
            for attempt in range(self._tries):
                yield row, attempt

    def _task_of(self, row: int) -> Task | None:
        """Returns the task of a row; None for a row that is no task."""
        try:
            return self._taskset.task(row)
        except DataError:  # the row's rollouts failed for this reason, and say so
            return None

    def _stored_text(self, number: int, row: int, attempt: int, chars: int) -> EvalAnswer:
        """Returns one stored answer with prompt, truth and response, each of at most `chars` characters."""
        task = self._tasks[row]
        answer = EvalAnswer(
            row=row,
            attempt=attempt,
            reward=_reward_of(self._answers[number]),
            right=None if self._right is None else self._right[number],
            prompt="" if task is None else task.prompt[:chars],
            truth="" if task is None else task.truth[:chars],
            category=self._category(row),
        )
        rollout = self._answers[number]
        if not isinstance(rollout, RolloutResult):
            return msgspec.structs.replace(answer, error=explain(rollout)[: limits.ERROR_TEXT_CHARS])
        text = response_text(rollout, self._tokenizer)
        return msgspec.structs.replace(
            answer,
            parts=part_sums([rollout.metrics]),
            finish=rollout.finish,
            tokens=_length_of(rollout),
            text=text[:chars],
            extracted=extracted_note(rollout.extracted),
            chars=len(text),
        )

    def _votes(self) -> list[int]:
        """Returns the votes of each row's answers."""
        votes: list[int] = []
        for first in range(0, len(self._answers), self._tries):
            row_answers = self._answers[first : first + self._tries]
            texts = [answer.text if isinstance(answer, RolloutResult) else None for answer in row_answers]
            votes += votes_of(texts)
        return votes

    def _category(self, row: int) -> str:
        """Returns the text under the taskset's key of categories; empty without one."""
        task = self._tasks[row]
        if task is None or self._taskset.spec.format.category_key is None:
            return ""
        record = DatasetRecord(task.raw, self._taskset.spec, row)
        return (record.optional(self._taskset.spec.format.category_key) or "")[:_CATEGORY_CHARS]

    def _categories(self) -> dict[str, CategoryScore]:
        """Returns answers, rewards and right answers by category."""
        scores: dict[str, CategoryScore] = {}
        for number, (row, _) in enumerate(self._attempts()):
            name = self._category(row)
            if not name or (name not in scores and len(scores) == _MOST_CATEGORIES):
                continue
            before = scores.get(name, CategoryScore(0, 0.0, 0))
            right = self._right is not None and self._right[number]
            reward = before.reward + _reward_of(self._answers[number])
            scores[name] = CategoryScore(before.answers + 1, reward, before.right + right)
        return scores

    def _judge_texts(self) -> tuple[RowAnswers, ...]:
        """Returns the texts of auxiliary models on each answer, cut if a record would become too large."""
        judged: list[RowAnswers] = []
        remaining_chars = limits.EVAL_AUXILIARY_CHARS
        for (row, _), answer in zip(self._attempts(), self._answers, strict=True):
            if not isinstance(answer, RolloutResult) or not answer.auxiliary:
                continue
            turns = []
            for turn in answer.auxiliary:
                turns.append(msgspec.structs.replace(turn, text=turn.text[:remaining_chars]))
                remaining_chars -= len(turns[-1].text)
            judged.append(RowAnswers(row, tuple(turns)))
        return tuple(judged)


def right_answers(answers: Sequence[RolloutResult | RftdError]) -> list[bool] | None:
    """Returns for each answer whether it is right; None if the reward cannot tell.

    A part named in `RIGHT_PARTS` decides; without one, a reward of 1, unless higher rewards show that 1 is not the
    maximum.
    """
    finished = [answer for answer in answers if isinstance(answer, RolloutResult)]
    named = [_right_part(answer.metrics) for answer in finished]
    by_part = any(right_part is not None for right_part in named)
    if not by_part and any(answer.reward > _RIGHT for answer in finished):
        return None
    flags: list[bool] = []
    for answer in answers:
        if not isinstance(answer, RolloutResult):
            flags.append(False)
            continue
        right_value = _right_part(answer.metrics) if by_part else answer.reward
        flags.append(right_value is not None and right_value >= _RIGHT)
    return flags


def response_text(rollout: RolloutResult, tokenizer: Tokenizer) -> str:
    """Returns the answer as text; for several turns, all of them with the text in between."""
    if rollout.turns <= 1 and not rollout.steps:
        return rollout.text
    tokens = rollout.tokens.tolist()
    if not rollout.steps:
        return tokenizer.decode(tokens[rollout.prompt_tokens :])
    texts: list[str] = []
    first = 0
    for step in rollout.steps:
        texts.append(tokenizer.decode(tokens[first + step.prompt_tokens : first + step.tokens]))
        first += step.tokens
    return "\n".join(texts)


def _right_part(parts: Mapping[str, float]) -> float | None:
    """Returns the first part of a reward with a name of `RIGHT_PARTS`; None without one."""
    return next((parts[name] for name in RIGHT_PARTS if name in parts), None)


def _reward_of(answer: RolloutResult | RftdError) -> float:
    """Returns the reward of an answer; 0 for a failed one."""
    return answer.reward if isinstance(answer, RolloutResult) else 0.0


def _length_of(answer: RolloutResult | RftdError) -> int:
    """Returns the length of an answer, in tokens."""
    return len(answer.tokens) - answer.prompt_tokens if isinstance(answer, RolloutResult) else 0


def _cut_prompts(finished: Sequence[RolloutResult]) -> dict[str, float]:
    """Returns the number of answers to a cut prompt, scored 0 for any model; empty if every prompt fitted."""
    cut = sum(answer.finish == PROMPT_TRUNCATED for answer in finished)
    return {PROMPTS_CUT_ROWS: float(cut)} if cut else {}


class _Vote(NamedTuple):
    """The answer given by a response: its text, and its number if it has exactly one."""

    text: str
    """Text of the answer."""
    quantity: Quantity | None
    """Only number in the text."""

    def agrees(self, vote: _Vote) -> bool:
        """True if both answers have equal texts or equal quantities."""
        if self.text == vote.text or agree(self.text, vote.text):
            return True
        return self.quantity is not None and vote.quantity is not None and self.quantity.agrees(vote.quantity)


def votes_of(responses: Sequence[str | None]) -> list[int]:
    """Returns for each response the index of the first response with an equal answer, for majority voting; values are
    compared.

    A response without a marked answer counts by its closing words. None (a failed rollout) equals nothing, not even
    None.
    """
    answers = [None if response is None else _vote(response) for response in responses]
    votes: list[int] = []
    for number, answer in enumerate(answers):
        vote = number
        for earlier in dict.fromkeys(votes):
            before = answers[earlier]
            if answer is not None and before is not None and answer.agrees(before):
                vote = earlier
                break
        votes.append(vote)
    return votes


def _vote(response: str) -> _Vote:
    """Returns the marked answer of a response, else its closing words."""
    response = visible(response)
    marked = answer_of(response)
    text = closing(response.rpartition("</think>")[2]).strip() if marked is None else marked
    return _Vote(text, parse_quantity(text) or only_quantity(text))

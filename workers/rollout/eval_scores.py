"""The scores of a range of held-out rows: rewards, what is right, who agrees, and the texts that are kept."""

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
from rftd.workers.workflows.rewards.words import closing, only_quantity

RIGHT_PARTS: Final = ("accuracy", "acc", "correct", "right")
"""Names of a reward's part that says whether the answer is right, the first of which counts."""
_RIGHT: Final = 1.0
"""The least value of a right answer."""
_CATEGORY_CHARS: Final = 64
_MOST_CATEGORIES: Final = 64
"""Categories of one range that are counted; rows of further ones are in none."""


class ScoredRows:
    """Held-out rows of one lease with their answers."""

    def __init__(
        self,
        lease: EvalLeased,
        taskset: Taskset,
        results: Sequence[RolloutResult | RftdError],
        *,
        tries: int,
        tokenizer: Tokenizer,
    ) -> None:
        """`results` are those of each row's `tries` answers, row after row."""
        self._lease = lease
        self._taskset = taskset
        self._results = results
        self._tries = tries
        self._tokenizer = tokenizer
        self._right = right_answers(results)
        self._tasks = {row: self._task(row) for row in range(lease.row_start, lease.row_end)}

    def scores(self, weights: WeightsRef) -> EvalScored:
        """The scores, without texts; an answer that failed scores 0 and is counted."""
        lease = self._lease
        answered = [result for result in self._results if isinstance(result, RolloutResult)]
        failed = len(self._results) - len(answered)
        return EvalScored(
            eval=lease.eval,
            lease=lease.lease,
            stage=lease.stage,
            taskset=lease.taskset,
            row_start=lease.row_start,
            version=weights.version,
            generation=weights.generation,
            rewards=Array.of([_reward(result) for result in self._results], "f4"),
            tokens=Array.of([_length(result) for result in self._results], "u4"),
            metrics={"failed_rows": float(failed)} | _cut(answered),
            reward_parts=part_sums(result.metrics for result in answered),
            auxiliary=self._judges(),
            tries=self._tries,
            right=None if self._right is None else Array.of(self._right, "u1"),
            votes=Array.of(self._votes(), "u4") if self._tries > 1 else None,
            categories=self._categories(),
        )

    def texts(self) -> list[EvalAnswer]:
        """The answers that are kept of these rows, as text, each cut where all together would be too much."""
        # An even share of the whole evaluation's, for nobody sees all of its rows.
        rows = len(self._taskset) * self._tries
        most = max(1, limits.EVAL_ANSWERS * len(self._results) // max(1, rows))
        rewards = [_reward(result) for result in self._results]
        names = [f"{self._taskset.digest}/{row}/{attempt}" for row, attempt in self._places()]
        kept = kept_places(rewards, names, most)
        chars = min(limits.EVAL_ANSWER_CHARS, limits.EVAL_ANSWERS_CHARS // (3 * len(kept))) if kept else 0
        places = list(self._places())
        return [self._text(number, *places[number], chars) for number in kept]

    def _places(self) -> Iterator[tuple[int, int]]:
        """The row and the attempt of each result."""
        for row in range(self._lease.row_start, self._lease.row_end):
            for attempt in range(self._tries):
                yield row, attempt

    def _task(self, row: int) -> Task | None:
        try:
            return self._taskset.task(row)
        except DataError:  # its rollouts failed by it, and say so
            return None

    def _text(self, number: int, row: int, attempt: int, chars: int) -> EvalAnswer:
        task = self._tasks[row]
        answer = EvalAnswer(
            row=row,
            attempt=attempt,
            reward=_reward(self._results[number]),
            right=None if self._right is None else self._right[number],
            prompt="" if task is None else task.prompt[:chars],
            truth="" if task is None else task.truth[:chars],
            category=self._category(row),
        )
        result = self._results[number]
        if not isinstance(result, RolloutResult):
            return msgspec.structs.replace(answer, error=explain(result)[: limits.ERROR_TEXT_CHARS])
        text = response_text(result, self._tokenizer)
        return msgspec.structs.replace(
            answer,
            parts=part_sums([result.metrics]),
            finish=result.finish,
            tokens=_length(result),
            text=text[:chars],
            chars=len(text),
        )

    def _votes(self) -> list[int]:
        """The votes of each row's answers."""
        votes: list[int] = []
        for first in range(0, len(self._results), self._tries):
            some = self._results[first : first + self._tries]
            texts = [result.text if isinstance(result, RolloutResult) else None for result in some]
            votes += votes_of(texts)
        return votes

    def _category(self, row: int) -> str:
        """The text under the taskset's key of categories; empty without one."""
        task = self._tasks[row]
        if task is None or self._taskset.spec.format.category_key is None:
            return ""
        record = DatasetRecord(task.raw, self._taskset.spec, row)
        return (record.optional(self._taskset.spec.format.category_key) or "")[:_CATEGORY_CHARS]

    def _categories(self) -> dict[str, CategoryScore]:
        scores: dict[str, CategoryScore] = {}
        for number, (row, _) in enumerate(self._places()):
            name = self._category(row)
            if not name or (name not in scores and len(scores) == _MOST_CATEGORIES):
                continue
            before = scores.get(name, CategoryScore(0, 0.0, 0))
            right = self._right is not None and self._right[number]
            reward = before.reward + _reward(self._results[number])
            scores[name] = CategoryScore(before.answers + 1, reward, before.right + right)
        return scores

    def _judges(self) -> tuple[RowAnswers, ...]:
        """The words of auxiliary models on each answer, cut where a record would become too large."""
        judged: list[RowAnswers] = []
        left = limits.EVAL_AUXILIARY_CHARS
        for (row, _), result in zip(self._places(), self._results, strict=True):
            if not isinstance(result, RolloutResult) or not result.auxiliary:
                continue
            turns = []
            for turn in result.auxiliary:
                turns.append(msgspec.structs.replace(turn, text=turn.text[:left]))
                left -= len(turns[-1].text)
            judged.append(RowAnswers(row, tuple(turns)))
        return tuple(judged)


def right_answers(results: Sequence[RolloutResult | RftdError]) -> list[bool] | None:
    """Whether each answer is right; None where the reward does not say so.

    It says so by a part of a known name, else by a reward of 1 if no reward is higher: a higher one is no share of 1.
    """
    answered = [result for result in results if isinstance(result, RolloutResult)]
    named = [_right_part(result.metrics) for result in answered]
    by_part = any(value is not None for value in named)
    if not by_part and any(result.reward > _RIGHT for result in answered):
        return None
    flags: list[bool] = []
    for result in results:
        if not isinstance(result, RolloutResult):
            flags.append(False)
            continue
        value = _right_part(result.metrics) if by_part else result.reward
        flags.append(value is not None and value >= _RIGHT)
    return flags


def response_text(result: RolloutResult, tokenizer: Tokenizer) -> str:
    """The answer as text; of several turns, all of them with what came between."""
    if result.turns <= 1 and not result.steps:
        return result.text
    tokens = result.tokens.tolist()
    if not result.steps:
        return tokenizer.decode(tokens[result.prompt_tokens :])
    texts: list[str] = []
    first = 0
    for step in result.steps:
        texts.append(tokenizer.decode(tokens[first + step.prompt_tokens : first + step.tokens]))
        first += step.tokens
    return "\n".join(texts)


def _right_part(parts: Mapping[str, float]) -> float | None:
    return next((parts[name] for name in RIGHT_PARTS if name in parts), None)


def _reward(result: RolloutResult | RftdError) -> float:
    return result.reward if isinstance(result, RolloutResult) else 0.0


def _length(result: RolloutResult | RftdError) -> int:
    """The length of an answer, in tokens."""
    return len(result.tokens) - result.prompt_tokens if isinstance(result, RolloutResult) else 0


def _cut(answered: Sequence[RolloutResult]) -> dict[str, float]:
    """The answers to a prompt that did not fit, which score 0 whatever the model is worth; nothing if each did."""
    cut = sum(result.finish == PROMPT_TRUNCATED for result in answered)
    return {PROMPTS_CUT_ROWS: float(cut)} if cut else {}


class _Vote(NamedTuple):
    """What a response answers."""

    text: str
    quantity: Quantity | None
    """The one number in the text."""

    def agrees(self, other: _Vote) -> bool:
        if self.text == other.text or agree(self.text, other.text):
            return True
        return self.quantity is not None and other.quantity is not None and self.quantity.agrees(other.quantity)


def votes_of(responses: Sequence[str | None]) -> list[int]:
    """For each response the number of the first one that gives the same answer, compared by value.

    A response that marks no answer votes by its closing words. None, no response at all, agrees with nothing.
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
    response = visible(response)
    marked = answer_of(response)
    text = closing(response.rpartition("</think>")[2]).strip() if marked is None else marked
    return _Vote(text, parse_quantity(text) or only_quantity(text))

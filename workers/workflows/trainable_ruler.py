"""`TrainableRulerWorkflow`: several answers and their judgement by the same model, each with a reward of its own."""

from __future__ import annotations

import asyncio
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, ClassVar

import msgspec

from rftd.ops.errors import RolloutError
from rftd.workers.datasets.message import Message
from rftd.workers.datasets.task import Task
from rftd.workers.pipelines.ruler import ranking_question, read_scores
from rftd.workers.workflows.math_workflow import THINK_PROMPT
from rftd.workers.workflows.result import RolloutResult
from rftd.workers.workflows.rewards.reward import RewardResult
from rftd.workers.workflows.simple import finish, with_system_prompt
from rftd.workers.workflows.trajectory import Trajectory

if TYPE_CHECKING:
    from rftd.workers.generation.model import Model
    from rftd.workers.generation.response import Response
    from rftd.workers.workflows.rewards.scorer import Scorer

ANSWER = "answer"
"""Role of sequences in which the model answers."""
JUDGE = "judge"
"""Role of sequences in which the model judges."""
Answers = Annotated[int, msgspec.Meta(ge=2, le=16)]


class TrainableRulerWorkflow:
    """Draws `answers` to a mathematics problem and one judgement of them, by the trained model.

    The role `answer` is rewarded by the judgement's scores, 0 to 1, or by the taskset's reward if there are none. The
    role `judge` is rewarded by 1 less the mean distance of its scores from that reward, or by 0 without scores. Of
    `hierarchical_grpo` with `rollout_roles: [answer]`, answers are compared in their rollout, judgements in the group.
    """

    default_reward: ClassVar[str | None] = "math_reward"
    roles: ClassVar[tuple[str, ...]] = (ANSWER, JUDGE)

    def __init__(self, *, answers: Answers = 4) -> None:
        """`answers` is the number of answers drawn to one task, before their judgement."""
        self._answers = answers

    async def run(self, task: Task, model: Model, reward: Scorer) -> list[RolloutResult]:
        """Returns the answers in order, then the judgement; of a truncated prompt, a single answer with reward 0."""
        messages = with_system_prompt(task, THINK_PROMPT if task.system_prompt is None else task.system_prompt)
        prefix = task.reply_prefix or ""
        draws = (model.chat(messages, reply_prefix=prefix) for _ in range(self._answers))
        responses = await asyncio.gather(*draws)
        golds = [(await finish(task, response, reward)).reward for response in responses]
        if responses[0].truncated:
            return [_sequence(responses[0], 0.0, ANSWER)]
        question = ranking_question(task.prompt, [prefix + response.text for response in responses])
        judgement = await model.chat([Message("user", question)])
        try:
            scores = read_scores(judgement.text, len(responses), JUDGE)
        except RolloutError:
            scores = []
        distances = [abs(score - min(max(gold, 0.0), 1.0)) for score, gold in zip(scores, golds, strict=False)]
        rewarded = zip(responses, scores or golds, strict=True)
        return [
            *(_sequence(response, score, ANSWER) for response, score in rewarded),
            _sequence(judgement, 1.0 - fmean(distances) if distances else 0.0, JUDGE),
        ]


def _sequence(response: Response, reward: float, role: str) -> RolloutResult:
    trajectory = Trajectory()
    trajectory.add(response)
    return trajectory.result(RewardResult(value=reward), role=role)

"""The operator `ruler`: the answers of a group are rewarded by one judgement, whose absence fails the group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from rftd.ops.errors import PipelineError, RolloutError
from rftd.streams.events.experience import ExperienceProduced, Span
from rftd.streams.log.arrays import Array
from rftd.streams.spec.stage_parts import OperatorSpec
from rftd.workers.datasets.message import Message
from rftd.workers.generation.auxiliary.auxiliary_model import AuxiliaryAnswer
from rftd.workers.pipelines.operator import GroupContext
from rftd.workers.pipelines.pipeline import OperatorChain
from rftd.workers.pipelines.ruler import read_scores


class Judge:
    name = "judge"

    def __init__(self, *texts: str) -> None:
        self.texts = list(texts)
        self.questions: list[str] = []

    async def chat(self, messages: Sequence[Message], **_: Any) -> AuxiliaryAnswer:
        self.questions.append(messages[-1].content)
        return AuxiliaryAnswer(text=self.texts.pop(0), finish="stop")


def group(*finishes: str) -> list[Any]:
    """Members whose answers are their letters, to one question; the group's number moves the first place by one."""
    return [
        ExperienceProduced(
            experience=UUID(int=number + 1),
            group=UUID(int=99),
            rollout=number,
            stage=0,
            lease=UUID(int=98),
            tokens=Array.of([*b"1+2?", *[ord("a") + number] * 2], "u4"),
            prompt_tokens=4,
            loss_mask=Array.of([1, 1], "u1"),
            logprobs=Array.of([-1.0, -1.0], "f4"),
            spans=(Span(0, 0, 0, 2),),
            reward=float(number == 0),
            finish=finish,
        )
        for number, finish in enumerate(finishes)
    ]


def ranked(judges: Sequence[Judge], members: list[Any], **arguments: Any) -> Any:
    context = GroupContext(judges, lambda tokens: bytes(tokens).decode())  # type: ignore[arg-type]
    return OperatorChain([OperatorSpec(name="ruler", args=arguments)]).judge(members, context)


def test_all_answers_of_a_group_are_rewarded_by_one_judgement() -> None:
    judge = Judge("The third.\nScores: [0.1, 0.2, 0.9, 0]")
    verdicts, metrics = ranked([judge], group("stop", "stop", "length", "stop"))
    # Group 99 of four answers begins with the fourth.
    assert [verdict.reward for verdict in verdicts] == [0.2, 0.9, 0.0, 0.1]
    assert metrics == {"ruler/gold_reward": 0.25, "ruler/score": pytest.approx(0.3)}
    [question] = judge.questions
    assert "<question>\n1+2?\n</question>\n<answer 1>\ndd\n</answer 1>\n<answer 2>\naa\n</answer 2>" in question


def test_an_answer_to_a_cut_prompt_is_not_judged() -> None:
    verdicts, _ = ranked([Judge("Scores: [0.5, 1]")], group("stop", "prompt_truncated", "stop"))
    assert [verdict.reward for verdict in verdicts] == [1.0, 0.0, 0.5]


def test_a_judge_without_scores_is_asked_again_and_then_fails_the_group() -> None:
    again = Judge("I cannot say.", "Scores: [1, 0.5]")
    assert [verdict.reward for verdict in ranked([again], group("stop", "stop")).verdicts] == [0.5, 1.0]
    with pytest.raises(PipelineError, match=r"operator 'ruler' raised .*the judge 'judge' gave no 2 scores"):
        ranked([Judge("Scores: [1]")], group("stop", "stop"), tries=1)


def test_without_the_judge_the_group_fails_with_the_reason() -> None:
    with pytest.raises(PipelineError, match="no auxiliary model to judge"):
        ranked([], group("stop"))
    with pytest.raises(PipelineError, match="no auxiliary model is named 'better'"):
        ranked([Judge("")], group("stop"), judge="better")


@pytest.mark.parametrize(
    "text",
    ["", "[1, 0]", "Scores: 1, 0", "Scores: [1, 2]", "Scores: [1, NaN]", 'Scores: [1, "x"]', "Scores: [0, 1] so"],
)
def test_no_other_end_of_a_judges_answer_has_scores(text: str) -> None:
    with pytest.raises(RolloutError, match="gave no 2 scores between 0 and 1"):
        read_scores(text, 2, "judge")
    assert read_scores("Well.\nScores: [1, 0.5]\n", 2, "judge") == [1.0, 0.5]

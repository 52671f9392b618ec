"""`OperatorChain`: the operators of a stage in order, and their verdicts on the experiences of a group."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rftd.ops.errors import PipelineError, explain
from rftd.streams.events.experience import ExperienceProduced
from rftd.streams.events.task import MemberVerdict
from rftd.streams.spec.stage_parts import OperatorSpec
from rftd.workers.pipelines.operator import AskingOperator, GroupContext, Operator, PipelineExperience
from rftd.workers.pipelines.registry import OPERATORS

NO_CONTEXT = GroupContext()
"""The context without models."""
FIGURES_MOST = 64
"""Maximum number of figures in one verdict."""


class GroupVerdicts(NamedTuple):
    """The verdicts on a group's experiences in order, and the operators' figures."""

    verdicts: tuple[MemberVerdict, ...]
    """Verdicts on the group's experiences, one for each, in the order of the group."""
    metrics: dict[str, float]
    """Figures of the operators, by name."""


class OperatorChain:
    """The operators of a stage, opened once. Raises ConfigError for an unknown operator or invalid arguments."""

    def __init__(self, specs: Sequence[OperatorSpec]) -> None:
        """`specs` are the operators of the experiment file, in order."""
        self._operators = [(spec.name, OPERATORS.open(spec.name, spec.args)) for spec in specs]
        """Name and operator, in order."""

    def judge(self, group: Sequence[ExperienceProduced], context: GroupContext = NO_CONTEXT) -> GroupVerdicts:
        """Returns the verdicts on a group's experiences, which are ascending by rollout. Raises PipelineError, with the
        name of a failing operator.

        Blocks; where an operator asks models, the thread must have no running event loop.
        """
        experiences: Sequence[PipelineExperience] = [
            PipelineExperience(
                rollout=event.rollout,
                reward=event.reward,
                metrics=event.metrics,
                finish=event.finish,
                response_tokens=len(event.tokens) - event.prompt_tokens,
                produced=event,
            )
            for event in group
        ]
        dropped_by: dict[int, int] = {}
        metrics: dict[str, float] = {}
        for index, (name, operator) in enumerate(self._operators):
            passed, figures = _run_operator(name, operator, experiences, context)
            remaining = {experience.rollout for experience in passed}
            dropped_by |= {
                experience.rollout: index for experience in experiences if experience.rollout not in remaining
            }
            metrics |= {f"{name}/{key}": figure for key, figure in figures.items()}
            experiences = passed
        by_rollout = {experience.rollout: experience for experience in experiences}
        for experience in experiences:
            if not math.isfinite(experience.reward):
                raise PipelineError(f"the reward of rollout {experience.rollout} is {experience.reward} at the end")
        return GroupVerdicts(
            tuple(_verdict_of(event, by_rollout.get(event.rollout), dropped_by) for event in group),
            dict(list(metrics.items())[:FIGURES_MOST]),
        )


def _verdict_of(
    event: ExperienceProduced, passed: PipelineExperience | None, dropped_by: Mapping[int, int]
) -> MemberVerdict:
    """Returns the verdict on an experience: as `passed` by the operators, or dropped."""
    if passed is None:
        return MemberVerdict(event.reward, dropped_by=dropped_by[event.rollout])
    return MemberVerdict(passed.reward, passed.masked)


def _run_operator(
    name: str, operator: Operator, experiences: Sequence[PipelineExperience], context: GroupContext
) -> tuple[list[PipelineExperience], dict[str, float]]:
    """Returns an operator's answer, checked. Raises PipelineError."""
    try:
        if isinstance(operator, AskingOperator):
            answer, figures = asyncio.run(operator.ask(experiences, context))
        else:
            answer, figures = operator.process(experiences)
        passed = list(answer)
        numbers = {str(key): float(figure) for key, figure in figures.items()}
    except (Exception, SystemExit) as error:  # a third party's operator may raise anything
        raise PipelineError(f"operator {name!r} raised {explain(error)}") from error
    group_rollouts = {experience.rollout for experience in experiences}
    rollouts = [getattr(experience, "rollout", None) for experience in passed]
    if len(set(rollouts)) != len(rollouts) or not group_rollouts.issuperset(rollouts):
        raise PipelineError(f"operator {name!r} returned rollouts {rollouts} of {sorted(group_rollouts)}")
    passed.sort(key=lambda experience: experience.rollout)
    return passed, {key: figure for key, figure in numbers.items() if math.isfinite(figure)}

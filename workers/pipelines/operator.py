"""`Operator`: one step of the experience pipeline. `PipelineExperience`: the form of experiences for operators.

`AskingOperator` is a step with questions to auxiliary models; `GroupContext` has the models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

from rftd.streams.events.experience import ExperienceProduced

if TYPE_CHECKING:
    from rftd.workers.generation.auxiliary.auxiliary_model import AuxiliaryModel


class PipelineExperience(msgspec.Struct, frozen=True, kw_only=True):
    """One experience of a finished group. Operators return changed copies (`msgspec.structs.replace`)."""

    rollout: int
    """Number of the rollout in its group, from 0; the experience's identity, never to be changed."""
    reward: float
    """Reward for advantages; not finite only between operators."""
    masked: bool = False
    """True if none of its tokens is to be trained; the experience still counts in its group's advantages."""
    metrics: Mapping[str, float] = {}
    """Named figures of the rollout, among them the parts of its reward."""
    finish: str = "stop"
    """`stop`, `length` or `prompt_truncated`."""
    response_tokens: int = 0
    """Length of the response in tokens."""
    produced: ExperienceProduced
    """The experience's record, with all token arrays."""


class Operator(Protocol):
    """One step of the experience pipeline: removes or changes experiences of one group."""

    def process(
        self, experiences: Sequence[PipelineExperience]
    ) -> tuple[Sequence[PipelineExperience], Mapping[str, float]]:
        """Returns the kept experiences of a group, with changed rewards or masks, and figures by name.

        An exception, an added experience or an unknown one fails the group: a dead letter, and the pipeline goes on.
        """
        ...


def _no_text(tokens: Sequence[int]) -> str:
    raise LookupError("there is no tokenizer")


class GroupContext(msgspec.Struct, frozen=True):
    """The auxiliary models of a group's stage, and the reading of tokens as text."""

    models: Sequence[AuxiliaryModel] = ()
    """Models in the order of the experiment file; their answers are recorded with the verdicts."""
    decode: Callable[[Sequence[int]], str] = _no_text
    """Text of token ids, without special tokens."""


@runtime_checkable
class AskingOperator(Protocol):
    """An operator with questions to auxiliary models, called in place of `process`."""

    async def ask(
        self, experiences: Sequence[PipelineExperience], context: GroupContext
    ) -> tuple[Sequence[PipelineExperience], Mapping[str, float]]:
        """Returns what `Operator.process` returns, after the models' answers."""
        ...

"""`TrinityExperience`: tokens with a reward, in the fields of Trinity-RFT's `Experience`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

import torch

from rftd.workers.generation.response import Response

_SUFFIXES: Final = count()
"""Numbers that make experience ids unique."""


@dataclass
class ExperienceId:
    """The numbers of an experience; rftd reads `run` and `step`, and counts batches and tasks itself."""

    batch: int | str = 0
    task: int | str = 0
    run: int = 0
    step: int = 0
    suffix: str = field(default_factory=lambda: f"{next(_SUFFIXES):06x}")

    @property
    def uid(self) -> str:
        """Text of all numbers."""
        return f"{self.rid}/{self.step}/{self.suffix}"

    @property
    def sid(self) -> str:
        """Text of batch, task and step."""
        return f"{self.tid}/{self.step}"

    @property
    def rid(self) -> str:
        """Text of batch, task and run."""
        return f"{self.tid}/{self.run}"

    @property
    def tid(self) -> str:
        """Text of batch and task."""
        return f"{self.batch}/{self.task}"

    def to_dict(self) -> dict[str, Any]:
        """Returns the numbers by name."""
        return dict(vars(self))


class TrinityExperience:
    """A sequence of T tokens, of which the first P are the prompt."""

    def __init__(
        self,
        *,
        tokens: Any,
        eid: ExperienceId | Mapping[str, Any] | None = None,
        prompt_length: int = 1,
        logprobs: Any = None,
        action_mask: Any = None,
        reward: float | None = None,
        token_level_reward: Any = None,
        advantages: Any = None,
        returns: Any = None,
        truncate_status: str | None = None,
        info: dict[str, Any] | None = None,
        metrics: dict[str, float] | None = None,
        response_text: str | None = None,
        prompt_text: str | None = None,
        messages: list[dict[str, Any]] | None = None,
        tools: list[dict[str, Any]] | None = None,
        chosen: Any = None,
        rejected: Any = None,
        chosen_messages: list[dict[str, Any]] | None = None,
        rejected_messages: list[dict[str, Any]] | None = None,
        multi_modal_data: Any = None,
        multi_modal_inputs: Any = None,
        teacher_logprobs: Any = None,
    ) -> None:
        """Raises AssertionError for a prompt as long as the tokens, as Trinity-RFT does."""
        self.tokens: torch.Tensor = _tensor(tokens, torch.int32)
        self.experience_type = "multi_turn" if action_mask is not None else "single_turn"
        if action_mask is None and chosen is None:
            assert 0 < prompt_length < len(self.tokens), (
                f"prompt_length {prompt_length} of {len(self.tokens)} tokens: both prompt and response need one"
            )
            action_mask = torch.ones(len(self.tokens) - prompt_length, dtype=torch.bool)
        self.eid = ExperienceId(**eid) if isinstance(eid, Mapping) else eid or ExperienceId()
        self.prompt_length = prompt_length
        self.logprobs = None if logprobs is None else _tensor(logprobs, torch.float32)
        self.action_mask = None if action_mask is None else _tensor(action_mask, torch.bool)
        self.reward = reward
        self.token_level_reward = token_level_reward
        self.advantages = advantages
        self.returns = returns
        self.truncate_status = truncate_status
        self.info: dict[str, Any] = info or {}
        self.metrics: dict[str, float] = metrics or {}
        self.response_text = response_text
        self.prompt_text = prompt_text
        self.messages = messages
        self.tools = tools
        self.chosen = chosen
        self.rejected = rejected
        self.chosen_messages = chosen_messages
        self.rejected_messages = rejected_messages
        self.multi_modal_data = multi_modal_data
        self.multi_modal_inputs = multi_modal_inputs
        self.teacher_logprobs = teacher_logprobs
        self.drawn: Response | None = None
        """The answer behind the tokens, set by rftd."""


def _tensor(numbers: Any, dtype: torch.dtype) -> torch.Tensor:
    return numbers if isinstance(numbers, torch.Tensor) else torch.tensor(numbers, dtype=dtype)

"""Recorded experiences as rows of a later experiment: texts to imitate, or rollouts for off-policy training."""

from __future__ import annotations

from typing import Final

import msgspec

from rftd.daemon.http.views.experiences import ExperienceView
from rftd.daemon.http.views.text import RolloutText
from rftd.ops.errors import NotFoundError
from rftd.streams.spec.spec import ExperimentSpec
from rftd.workers.datasets.conversation import ended
from rftd.workers.datasets.recorded import RecordedRollout, RecordedStep
from rftd.workers.datasets.stage_tokenizer import stage_tokenizer
from rftd.workers.datasets.tokenizer import Tokenizer

SEVERAL: Final = "a rollout of several turns, or with words of its workflow"
"""Reason for no row: the rollout has several turns, or words of its workflow."""
UNREADABLE: Final = "without a text"
"""Reason for no row: the rollout has no text."""
EMPTY: Final = "without a prompt or an answer"
"""Reason for no row: the prompt or the answer is empty."""
OTHERWISE: Final = "text that the tokenizer reads as other tokens"
"""Reason for no row: the tokenizer reads the text as other tokens than those of the rollout."""


class RecordedRow(msgspec.Struct, frozen=True, kw_only=True):
    """The prompt as seen by the model, chat template included, and the answer: a row of `prompt_type: raw`."""

    prompt: str
    """Prompt as seen by the model."""
    response: str
    """Answer of the model."""
    reward: float | None
    """Reward of the experience; None without one."""
    experience: str
    """Id of the experience."""
    version: int
    """Oldest weight version that sampled a token of the answer."""


class RolloutRow(RecordedRollout, frozen=True, kw_only=True):
    """A recorded rollout as a row of `schema_type: experience`, with its origin."""

    experience: str
    """Id of the experience."""
    version: int
    """Oldest weight version that sampled a token of the answer."""


def experience_row(spec: ExperimentSpec, shown: ExperienceView) -> RolloutRow | None:
    """Returns a row for off-policy training, made of an experience with its tokens; None without a reward."""
    row = shown.experience
    if row.reward is None:
        return None
    logprobs = shown.logprobs or []
    taskset = spec.stages[row.stage].taskset
    temperatures = [taskset.sampling.temperature if taskset is not None else 1.0] * len(logprobs)
    for span in shown.sampling:
        temperatures[span.start : span.end] = [span.temperature] * (span.end - span.start)
    return RolloutRow(
        group=row.group,
        rollout=row.rollout,
        tokens=shown.tokens or [],
        prompt_tokens=row.prompt_tokens,
        logprobs=logprobs,
        loss_mask=shown.loss_mask,
        reward=row.reward,
        finish=row.finish,
        temperature=temperatures[0] if len(set(temperatures)) == 1 else temperatures,
        metrics={name: value for name, value in row.metrics.items() if value is not None},
        steps=[
            RecordedStep(
                tokens=step.tokens,
                prompt_tokens=step.prompt_tokens,
                reward=step.reward,
                step_reward=step.step_reward,
                state=step.state,
                role=step.role,
            )
            for step in shown.steps
        ],
        experience=row.id,
        version=row.oldest_version,
    )


class RecordedRows:
    """Rows of an experiment's experiences, and the reasons for experiences without a row."""

    def __init__(self, spec: ExperimentSpec | None) -> None:
        """Raises NotFoundError if the log has no specification of the experiment."""
        if spec is None:
            raise NotFoundError("the log keeps no specification of this experiment", fix="restore the whole log")
        self._spec = spec
        self._tokenizers: dict[int, Tokenizer] = {}
        """Tokenizer of each stage opened so far."""
        self.left_out: dict[str, int] = {}
        """Number of experiences without a row, by reason."""

    def row(self, shown: ExperienceView, text: RolloutText) -> RecordedRow | None:
        """Returns the row of an experience with its tokens and its text; None if no row is equivalent. Blocks."""
        why = SEVERAL if text.turns else UNREADABLE
        turns = text.turns
        if len(turns) == 1 and [passage.by for passage in turns[0].parts] == ["model"]:
            why = EMPTY
            prompt = turns[0].prompt
            answer = turns[0].answer
            if prompt and answer:
                why = OTHERWISE
                for raw_prompt in self._prompt_forms(shown.experience.stage, prompt):
                    if self._is_equivalent(shown, raw_prompt, answer):
                        return RecordedRow(
                            prompt=raw_prompt,
                            response=answer,
                            reward=shown.experience.reward,
                            experience=shown.experience.id,
                            version=shown.experience.oldest_version,
                        )
        self.left_out[why] = self.left_out.get(why, 0) + 1
        return None

    def _tokenizer(self, stage: int) -> Tokenizer:
        """Returns the tokenizer of a stage, opened once."""
        if stage not in self._tokenizers:
            self._tokenizers[stage] = stage_tokenizer(self._spec.stages[stage])
        return self._tokenizers[stage]

    def _prompt_forms(self, stage: int, prompt: str) -> list[str]:
        """Returns the prompt, and a second time without the text that the tokenizer puts before any text, if the prompt
        begins so.
        """
        tokenizer = self._tokenizer(stage)
        opening = tokenizer.decode(tokenizer.encode("", special=True), special=True)
        return [prompt, prompt.removeprefix(opening)] if opening and prompt.startswith(opening) else [prompt]

    def _is_equivalent(self, shown: ExperienceView, prompt: str, answer: str) -> bool:
        """True if the tokenizer reads prompt and answer as the rollout's own tokens, except for the mark of the end."""
        tokenizer = self._tokenizer(shown.experience.stage)
        tokens = shown.tokens or []
        middle = shown.experience.prompt_tokens
        if tokenizer.encode(prompt, special=True) != tokens[:middle]:
            return False
        return ended(tokenizer, tokenizer.encode(answer)) == ended(tokenizer, tokens[middle:])

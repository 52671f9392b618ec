"""Builds a rollout turn by turn: tokens drawn by the model are trained, the text between them is not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import msgspec

from rftd.ops.errors import RolloutError
from rftd.streams.events.experience import SamplingSpan, Span
from rftd.workers.generation.response import PROMPT_TRUNCATED, Response
from rftd.workers.workflows.result import RolloutResult
from rftd.workers.workflows.rewards.reward import RewardResult


def one_turn(response: Response, reward: RewardResult) -> RolloutResult:
    """Returns the rollout of a single turn, equal to a `Trajectory`'s but faster."""
    import numpy as np

    if response.truncated or len(response.spans) > 1:
        trajectory = Trajectory()
        trajectory.add(response)
        return trajectory.result(reward)
    return RolloutResult(
        tokens=np.array(response.prompt + response.tokens, dtype=np.uint32),
        prompt_tokens=len(response.prompt),
        # A bytearray, because an array over bytes would be read-only, and workflows may mask drawn tokens.
        loss_mask=np.frombuffer(bytearray(b"\1") * len(response.tokens), dtype=np.uint8),
        logprobs=np.array(response.logprobs, dtype=np.float32),
        processed_logprobs=np.array(response.processed_logprobs, np.float32) if response.processed_logprobs else None,
        spans=response.spans,
        reward=reward.value,
        metrics=reward.parts,
        extracted=reward.extracted,
        finish=response.finish,
        text=response.text,
        sampling=response.sampling,
    )


class Trajectory:
    """The tokens of one conversation, turn by turn, as one sequence for training.

    Either chat with the whole conversation each turn, or continue exactly: `model.generate([*trajectory.tokens,
    *observation])`. Turns form one sequence only if each prompt begins with everything before it, which is checked.
    """

    def __init__(self) -> None:
        self._tokens: list[int] = []
        """All tokens so far."""
        self._prompt_tokens = 0
        """Tokens of the first prompt."""
        self._mask: list[int] = []
        """1 for each trained token behind the first prompt, 0 for each other token there."""
        self._logprobs: list[float] = []
        """Log-probability of each token behind the first prompt."""
        self._processed: list[float] = []
        """Log-probabilities in the distributions behind the draws."""
        self._spans: list[Span] = []
        """Weight versions of the tokens."""
        self._sampling: list[SamplingSpan] = []
        """Sampling settings of the tokens."""
        self._finish = ""
        """Finish reason of the last turn."""
        self._text = ""
        """Text of the last turn."""
        self._turns: list[Response] = []
        """Responses added so far, except a truncated one behind earlier turns."""

    @property
    def turns(self) -> Sequence[Response]:
        """The model's answers until now, for rewards that examine the rollout."""
        return tuple(self._turns)

    @property
    def tokens(self) -> Sequence[int]:
        """All tokens until now: the beginning of the next prompt."""
        return tuple(self._tokens)

    def add(self, response: Response) -> None:
        """Appends one turn: the new part of its prompt, masked, and the response.

        Raises RolloutError if the prompt does not begin with the conversation so far.
        """
        self._finish = response.finish
        self._text = response.text
        if response.truncated and self._tokens:
            # The conversation outgrew the prompt: earlier turns stay in the record, and none is trained.
            return
        earlier_tokens = len(self._tokens)
        if not earlier_tokens:
            self._prompt_tokens = len(response.prompt)
        # Compared by tokens, not text: different ids of equal text would be trained under the log-probabilities of the
        # drawn ids.
        elif list(response.prompt[:earlier_tokens]) != self._tokens:
            raise RolloutError(
                "the prompt of a later turn does not begin with the tokens of the turns before it",
                fix="pass each answer on as its response.text, unchanged; where the chat template rewrites history, "
                "continue with model.generate([*trajectory.tokens, *ids])",
            )
        new_prompt_tokens = 0 if not earlier_tokens else len(response.prompt) - earlier_tokens
        self._mask += [0] * new_prompt_tokens + [0 if response.truncated else 1] * len(response.tokens)
        self._logprobs += [0.0] * new_prompt_tokens + list(response.logprobs)
        if response.processed_logprobs:
            self._processed += [0.0] * new_prompt_tokens + list(response.processed_logprobs)
        self._add_spans(response, new_prompt_tokens)
        self._tokens = [*response.prompt, *response.tokens]
        self._turns.append(response)

    def result(self, reward: RewardResult, *, priority: float = 0.0, role: str = "") -> RolloutResult:
        """Returns the rollout with its reward and priority, both 0 where a prompt was too long; `role` is the agent in
        a rollout of several agents.
        """
        import numpy as np

        assert self._tokens, "no turn was added"
        truncated = self._finish == PROMPT_TRUNCATED
        mask = np.array(self._mask, dtype=np.uint8)
        processed = np.array(self._processed, dtype=np.float32)
        return RolloutResult(
            tokens=np.array(self._tokens, dtype=np.uint32),
            prompt_tokens=self._prompt_tokens,
            loss_mask=np.zeros_like(mask) if truncated else mask,
            logprobs=np.array(self._logprobs, dtype=np.float32),
            processed_logprobs=processed if len(processed) == len(mask) else None,
            spans=tuple(self._spans),
            reward=0.0 if truncated else reward.value,
            priority=0.0 if truncated else priority,
            metrics={} if truncated else dict(reward.parts),
            extracted=None if truncated else reward.extracted,
            finish=self._finish,
            text=self._text,
            sampling=tuple(self._sampling),
            turns=max(1, len(self._turns)),
            role=role,
        )

    def _add_spans(self, response: Response, new_prompt_tokens: int) -> None:
        """Appends the response's spans, shifted; new prompt tokens count towards the weights and sampling of their
        answer.
        """
        base = len(self._mask) - len(response.tokens)
        for index, span in enumerate(response.spans):
            append_span(
                self._spans, span, base + span.start - (new_prompt_tokens if index == 0 else 0), base + span.end
            )
        for index, drawn in enumerate(response.sampling):
            append_span(
                self._sampling, drawn, base + drawn.start - (new_prompt_tokens if index == 0 else 0), base + drawn.end
            )


S = TypeVar("S", Span, SamplingSpan)
"""Type of a span."""


def append_span(spans: list[S], span: S, start: int, end: int) -> None:
    """Appends the span with these ends, merged into the last span if both touch and are otherwise equal."""
    last = spans[-1] if spans else None
    if last is not None and last.end == start and moved(span, last.start, last.end) == last:
        spans.pop()
        start = last.start
    spans.append(moved(span, start, end))


def moved(span: S, start: int, end: int) -> S:
    """Returns a copy of the span with these ends."""
    return msgspec.structs.replace(span, start=start, end=end)


def shifted(parts: Iterable[tuple[Sequence[S], int]]) -> Iterator[S]:
    """Yields the spans of consecutive parts, shifted behind each other; a part is its spans and its number of response
    tokens.
    """
    offset = 0
    for spans, length in parts:
        for span in spans:
            yield moved(span, offset + span.start, offset + span.end)
        offset += length

"""Builds a rollout turn by turn: what the model drew is trained, what it was told in between is not."""

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
    """The rollout of a single turn: what a `Trajectory` of it would give, made at once."""
    import numpy as np

    if response.truncated or len(response.spans) > 1:
        trajectory = Trajectory()
        trajectory.add(response)
        return trajectory.result(reward)
    return RolloutResult(
        tokens=np.array(response.prompt + response.tokens, dtype=np.uint32),
        prompt_tokens=len(response.prompt),
        # A bytearray, for an array over bytes could not be written to, as workflows do that mask what they drew.
        loss_mask=np.frombuffer(bytearray(b"\1") * len(response.tokens), dtype=np.uint8),
        logprobs=np.array(response.logprobs, dtype=np.float32),
        processed_logprobs=np.array(response.processed_logprobs, np.float32) if response.processed_logprobs else None,
        spans=response.spans,
        reward=reward.value,
        metrics=reward.parts,
        finish=response.finish,
        text=response.text,
        sampling=response.sampling,
    )


class Trajectory:
    """The tokens of one conversation so far.

    Either chat with the whole conversation each turn, or continue exactly: `model.generate([*trajectory.tokens,
    *observation])`. Both are one sequence only if each prompt begins with everything before it, which is checked.
    """

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._prompt_tokens = 0
        self._mask: list[int] = []
        self._logprobs: list[float] = []
        self._processed: list[float] = []
        self._spans: list[Span] = []
        self._sampling: list[SamplingSpan] = []
        self._finish = ""
        self._text = ""
        self._turns: list[Response] = []

    @property
    def turns(self) -> Sequence[Response]:
        """The model's answers so far, for rewards that look at the rollout."""
        return tuple(self._turns)

    @property
    def tokens(self) -> Sequence[int]:
        """Everything so far: the beginning of the next prompt."""
        return tuple(self._tokens)

    def add(self, response: Response) -> None:
        """Appends one turn: what is new in its prompt, masked, and the response.

        Raises RolloutError if the prompt does not begin with the conversation so far.
        """
        self._finish = response.finish
        self._text = response.text
        if response.truncated and self._tokens:
            # The conversation outgrew the prompt: what was said stays, and none of it is trained.
            return
        known = len(self._tokens)
        if not known:
            self._prompt_tokens = len(response.prompt)
        # By tokens and not by text: other ids of the same text would be trained under log-probabilities of these.
        elif list(response.prompt[:known]) != self._tokens:
            raise RolloutError(
                "the prompt of a later turn does not begin with the tokens of the turns before it",
                fix="pass each answer on as its response.text, unchanged; where the chat template rewrites history, "
                "continue with model.generate([*trajectory.tokens, *ids])",
            )
        told = 0 if not known else len(response.prompt) - known
        self._mask += [0] * told + [0 if response.truncated else 1] * len(response.tokens)
        self._logprobs += [0.0] * told + list(response.logprobs)
        if response.processed_logprobs:
            self._processed += [0.0] * told + list(response.processed_logprobs)
        self._add_spans(response, told)
        self._tokens = [*response.prompt, *response.tokens]
        self._turns.append(response)

    def result(self, reward: RewardResult, *, priority: float = 0.0) -> RolloutResult:
        """The rollout with its reward and its priority tag; without any where a prompt did not fit."""
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
            finish=self._finish,
            text=self._text,
            sampling=tuple(self._sampling),
            turns=max(1, len(self._turns)),
        )

    def _add_spans(self, response: Response, told: int) -> None:
        """Appends them, shifted; what was told counts to the weights and the sampling that answered it."""
        base = len(self._mask) - len(response.tokens)
        for index, span in enumerate(response.spans):
            append_span(self._spans, span, base + span.start - (told if index == 0 else 0), base + span.end)
        for index, drawn in enumerate(response.sampling):
            append_span(self._sampling, drawn, base + drawn.start - (told if index == 0 else 0), base + drawn.end)


S = TypeVar("S", Span, SamplingSpan)


def append_span(spans: list[S], span: S, start: int, end: int) -> None:
    """Appends the span with these ends. It is joined to the last one where both touch and say the same."""
    last = spans[-1] if spans else None
    if last is not None and last.end == start and moved(span, last.start, last.end) == last:
        spans.pop()
        start = last.start
    spans.append(moved(span, start, end))


def moved(span: S, start: int, end: int) -> S:
    """The span with these ends."""
    return msgspec.structs.replace(span, start=start, end=end)


def shifted(parts: Iterable[tuple[Sequence[S], int]]) -> Iterator[S]:
    """The spans of parts that follow one another, each given with its number of response tokens."""
    place = 0
    for spans, length in parts:
        for span in spans:
            yield moved(span, place + span.start, place + span.end)
        place += length

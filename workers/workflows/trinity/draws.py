"""`DrawLedger`: the answers drawn in one rollout, and the results made of experiences that hold drawn tokens alone.

Nothing is encoded again: an experience's tokens must begin with the ids of a recorded prompt and its answer, and a
trained token must be a token of such an answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import torch

from rftd.ops.errors import RolloutError
from rftd.workers.datasets.message import Message
from rftd.workers.datasets.tokenizer import Tokenizer
from rftd.workers.generation.response import PROMPT_TRUNCATED, Response
from rftd.workers.workflows.result import RolloutResult
from rftd.workers.workflows.rewards.reward import RewardResult
from rftd.workers.workflows.trajectory import Trajectory, moved
from rftd.workers.workflows.trinity.experience import TrinityExperience

LOGPROB_TOLERANCE: Final = 1e-3
"""Largest difference between a returned and the recorded log-probability of a trained token."""
_WITHOUT_EFFECT: Final = (
    "token_level_reward",
    "advantages",
    "returns",
    "teacher_logprobs",
    "chosen",
    "rejected",
    "multi_modal_data",
    "multi_modal_inputs",
)
"""Fields decided by the algorithm of the experiment, or by nothing in rftd."""


class DrawLedger:
    """The answers of one rollout in the order of their ends, and the conversations before them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._responses: list[Response] = []
        self._ended: dict[tuple[Message, ...], Response] = {}

    def add(self, responses: Iterable[Response]) -> list[TrinityExperience]:
        """Records answers, and returns them as experiences."""
        fresh = list(responses)
        self._responses += fresh
        return [self.experience([response]) for response in fresh]

    def add_chat(self, messages: Sequence[Message], prefix: str, responses: Sequence[Response]) -> None:
        """Records which answers ended a conversation."""
        for response in responses:
            for text in dict.fromkeys((response.text, prefix + response.text)):
                self._ended[*messages, Message("assistant", text)] = response

    def turns_of(self, text: str) -> list[Response]:
        """Returns the newest answer with a text, after the answers before it; empty without one."""
        for response in reversed(self._responses):
            if response.text == text:
                return self.chain(response.prompt + response.tokens, response)
        return []

    def conversation(self, messages: Sequence[Message]) -> TrinityExperience:
        """Returns a conversation as an experience, up to the last answer drawn in it. Raises RolloutError without
        one.
        """
        spoken = tuple(messages)
        for count in range(len(spoken), 0, -1):
            response = self._ended.get(spoken[:count])
            if response is None and spoken[count - 1].role == "assistant":
                response = next(iter(self.turns_of(spoken[count - 1].content)[-1:]), None)
            if response is not None:
                return self.experience(self.chain(response.prompt + response.tokens, response))
        raise _refused(
            "messages",
            "no answer of the model ends these messages",
            "pass each answer on as its response_text, unchanged: its tokens are never encoded again",
        )

    def experience(self, chain: Sequence[Response]) -> TrinityExperience:
        """Returns consecutive answers as one experience; of a prompt cut at its limit nothing is trained."""
        trajectory = Trajectory()
        for response in chain:
            trajectory.add(response)
        made = trajectory.result(RewardResult(value=0.0))
        status = {"length": "response_truncated", PROMPT_TRUNCATED: PROMPT_TRUNCATED}.get(made.finish)
        experience = TrinityExperience(
            tokens=torch.from_numpy(made.tokens.astype(np.int32)),
            prompt_length=made.prompt_tokens,
            logprobs=torch.from_numpy(made.logprobs.copy()),
            action_mask=torch.from_numpy(made.loss_mask.astype(bool)),
            truncate_status=status,
            prompt_text=self._tokenizer.decode(made.tokens[: made.prompt_tokens].tolist()),
            response_text=made.text,
            info={"model_version": chain[-1].spans[-1].version},
        )
        if len(chain) == 1:
            experience.experience_type = "single_turn"
        experience.drawn = chain[-1]
        return experience

    def chain(self, tokens: tuple[int, ...], drawn: Response | None) -> list[Response]:
        """Returns the answers contained in a sequence of tokens, in order; `drawn` is preferred among equal ones."""
        contained = [
            response
            for response in self._responses
            if tokens[: len(response.prompt) + len(response.tokens)] == response.prompt + response.tokens
        ]
        chain: list[Response] = []
        end = len(tokens)
        while fitting := [response for response in contained if len(response.prompt) + len(response.tokens) <= end]:
            longest = max(len(response.prompt) + len(response.tokens) for response in fitting)
            equal = [response for response in fitting if len(response.prompt) + len(response.tokens) == longest]
            chosen = drawn if any(response is drawn for response in equal) and drawn is not None else equal[-1]
            chain.insert(0, chosen)
            end = len(chosen.prompt)
        return chain


def rollout_results(returned: Any, ledger: DrawLedger) -> list[RolloutResult]:
    """Returns the experiences of a class as the steps of a rollout. Raises RolloutError, naming the field at fault."""
    if not isinstance(returned, list | tuple) or not returned:
        shown = "an empty list" if isinstance(returned, list | tuple) else f"a {type(returned).__name__}"
        raise RolloutError(f"the class returned {shown}, not a list of experiences", fix="return the run's experiences")
    for experience in returned:
        if not hasattr(experience, "tokens") or not hasattr(experience, "reward"):
            raise RolloutError(
                f"the class returned a list with a {type(experience).__name__}, not experiences",
                fix="return what chat or generate returned, with a reward",
            )
    _check_runs(returned)
    return [_result(experience, ledger) for experience in returned]


def _check_runs(experiences: Sequence[Any]) -> None:
    runs = {experience.eid.run for experience in experiences}
    if len(runs) > 1:
        raise _refused(
            "eid.run",
            f"{len(runs)} runs, and one was requested",
            "return set_repeat_times runs, or task.rollout_args.n: each rollout is a run of its own",
        )
    rewards = {experience.reward for experience in experiences}
    steps = {experience.eid.step for experience in experiences}
    if len(rewards) > 1 and len(steps) < len(rewards):
        raise _refused(
            "eid.step",
            f"{len(experiences)} experiences with different rewards and {len(steps)} steps",
            "the experiences of a run are its steps: number them, or return one",
        )


def _result(experience: Any, ledger: DrawLedger) -> RolloutResult:
    for name in _WITHOUT_EFFECT:
        if getattr(experience, name, None) is not None:
            raise _refused(name, "a field that rftd does not train by", "leave it out: the algorithm computes it")
    tokens = tuple(int(token) for token in _listed(experience.tokens))
    chain = ledger.chain(tokens, getattr(experience, "drawn", None))
    if not chain:
        raise _refused(
            "tokens",
            f"{len(tokens)} tokens that do not begin with a prompt and an answer of this rollout",
            "return the tokens of chat, generate or convert_messages_to_experience",
        )
    trajectory = Trajectory()
    for response in chain:
        trajectory.add(response)
    result = trajectory.result(RewardResult(value=_number(experience.reward, "reward"), parts=_metrics(experience)))
    padding = len(tokens) - len(result.tokens)
    if padding:
        result = _padded(result, tokens, padding)
    if result.finish == PROMPT_TRUNCATED:
        return result
    mask = _mask(experience, result)
    _check_logprobs(experience, result, mask)
    text = experience.response_text if isinstance(experience.response_text, str) else result.text
    return msgspec.structs.replace(result, loss_mask=mask, text=text)


def _padded(result: RolloutResult, tokens: tuple[int, ...], padding: int) -> RolloutResult:
    """Returns the result followed by undrawn tokens, such as an environment's last words."""
    zeros = np.zeros(padding)
    last = result.spans[-1]
    processed = result.processed_logprobs
    return msgspec.structs.replace(
        result,
        tokens=np.array(tokens, dtype=np.uint32),
        loss_mask=np.concatenate([result.loss_mask, zeros.astype(np.uint8)]),
        logprobs=np.concatenate([result.logprobs, zeros.astype(np.float32)]),
        processed_logprobs=None if processed is None else np.concatenate([processed, zeros.astype(np.float32)]),
        spans=(*result.spans[:-1], moved(last, last.start, last.end + padding)),
    )


def _mask(experience: Any, result: RolloutResult) -> Any:
    """Returns the loss mask: drawn tokens within the class's own mask. Raises RolloutError for others in the mask."""
    total = len(result.tokens)
    prompt = int(experience.prompt_length)
    if experience.action_mask is None:
        wanted_mask = [1] * (total - prompt)
    else:
        wanted_mask = [int(bool(flag)) for flag in _listed(experience.action_mask)]
    # Without a prompt_length a mask of the response begins where the first answer does, as Trinity-RFT's trainer reads.
    starts = total - prompt, total - result.prompt_tokens
    if len(wanted_mask) not in starts:
        raise _refused(
            "action_mask",
            f"{len(wanted_mask)} entries for {starts[0]} response tokens",
            "one entry for each token after prompt_length",
        )
    positions = np.zeros(total, dtype=np.uint8)
    positions[total - len(wanted_mask) :] = wanted_mask
    drawn = np.concatenate([np.zeros(result.prompt_tokens, dtype=np.uint8), result.loss_mask])
    if undrawn := np.flatnonzero(positions & (1 - drawn)).tolist():
        raise _refused(
            "action_mask" if experience.action_mask is not None else "prompt_length",
            f"token {undrawn[0]} of {total} trained, and the model did not draw it",
            "0 for each token of a prompt, a tool or an environment",
        )
    return positions[result.prompt_tokens :]


def _check_logprobs(experience: Any, result: RolloutResult, mask: Any) -> None:
    if experience.logprobs is None:
        return
    returned = np.array(_listed(experience.logprobs), dtype=np.float64)
    if len(returned) > len(mask):
        raise _refused(
            "logprobs", f"{len(returned)} entries for {len(mask)} response tokens", "leave the field as it is"
        )
    offset = len(mask) - len(returned)
    difference = np.abs(returned - result.logprobs[offset:]) * mask[offset:]
    if len(difference) and not difference.max() <= LOGPROB_TOLERANCE:
        raise _refused(
            "logprobs",
            "other log-probabilities than those of the draws",
            "leave the field as it is: rftd trains by what the engine recorded",
        )


def _metrics(experience: Any) -> dict[str, float]:
    metrics = experience.metrics or {}
    return {str(name): _number(number, f"metrics.{name}") for name, number in metrics.items()}


def _number(number: Any, field: str) -> float:
    try:
        return float(number)
    except (TypeError, ValueError):
        raise _refused(field, f"{number!r}, which is not a number", "set it to a number") from None


def _listed(numbers: Any) -> list[Any]:
    return list(numbers.tolist() if hasattr(numbers, "tolist") else numbers)


def _refused(field: str, problem: str, fix: str) -> RolloutError:
    return RolloutError(f"the class returned {problem}", field=f"Experience.{field}", fix=fix)

"""Sampling settings as vLLM's, or the reason why vLLM would draw differently."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

from rftd.ops.errors import RolloutError
from rftd.workers.engines.torch.rollout.noise import key_of
from rftd.workers.engines.vllm.sampler import KEY, PROCESSED
from rftd.workers.generation.engine import GenerationRequest, Sampling

COLDEST: Final = 0.01
"""Lowest temperature above 0 used by vLLM, which raises lower ones to it."""
HOTTEST_VLLM: Final = 2.0
"""Highest temperature accepted by vLLM."""
HIGHEST_PRESENCE: Final = 2.0
"""Highest presence penalty accepted by vLLM."""


@dataclass(frozen=True)
class RequestForm:
    """Common properties of one engine's requests: vocabulary, length and end tokens."""

    vocabulary: int
    """Number of token ids of the model."""
    max_model_len: int
    """Maximum number of tokens of prompt and response."""
    ends: frozenset[int]
    """End-of-sequence tokens."""

    def check(self, request: GenerationRequest) -> None:
        """Raises RolloutError for a request that cannot run."""
        prompt = request.prompt
        if not prompt:
            raise RolloutError(f"request {request.id} has an empty prompt")
        if len(prompt) >= self.max_model_len:
            raise RolloutError(
                f"request {request.id}: a prompt of {len(prompt)} tokens leaves no room in {self.max_model_len}",
                fix="raise model.max_model_len, or lower model.max_prompt_tokens",
            )
        if not 0 <= min(prompt) <= max(prompt) < self.vocabulary:
            raise RolloutError(f"request {request.id} has a token outside of 0..{self.vocabulary - 1}")
        sampling = request.sampling
        if sampling.max_tokens < 1 or not sampling.temperature >= 0 or not 0 < sampling.top_p <= 1:
            raise RolloutError(f"request {request.id} has invalid sampling settings: {sampling}")
        if "" in sampling.stop:
            raise RolloutError(f"request {request.id} has an empty stop text")
        for token, _ in sampling.logit_bias:
            self.check_token(token)
        for name, number, fix in _unsupported_settings(sampling):
            raise RolloutError(f"vLLM cannot draw with {name} {number:g}", field=name, fix=fix)

    def check_token(self, token: int) -> None:
        """Raises RolloutError for a token with a bias but not in this model's vocabulary."""
        if not 0 <= token < self.vocabulary:
            raise RolloutError(
                f"logit_bias names token {token}, and the model has {self.vocabulary} tokens",
                field="rollout_args.logit_bias",
                fix=f"name token ids of this model, 0 to {self.vocabulary - 1}",
            )

    def params(self, request: GenerationRequest) -> Any:
        """Returns vLLM's SamplingParams for a checked request."""
        sampling = request.sampling
        limit = min(sampling.max_tokens, self.max_model_len - len(request.prompt))
        sampling_params = SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=max(sampling.top_k, 0),
            min_p=sampling.min_p,
            repetition_penalty=sampling.repetition_penalty,
            presence_penalty=sampling.presence_penalty,
            # Not `from_optional`, which clamps biases.
            logit_bias=dict(sampling.logit_bias) or None,
            max_tokens=limit,
            min_tokens=min(sampling.min_tokens, limit),
            stop=list(sampling.stop),
            stop_token_ids=[] if sampling.ignore_eos else sorted(self.ends),
            ignore_eos=sampling.ignore_eos,
            # Not `seed`, which makes a generator: see `PolicySampler`.
            extra_args={KEY: key_of(sampling.seed)},
            logprobs=PROCESSED if sampling.processed_logprobs else 0,
            flat_logprobs=True,
            # Stop texts are found in the text, and stay in it; nothing else needs the text.
            detokenize=bool(sampling.stop),
            include_stop_str_in_output=True,
            skip_special_tokens=False,
            spaces_between_special_tokens=False,
            output_kind=RequestOutputKind.FINAL_ONLY if request.watch is None else RequestOutputKind.CUMULATIVE,
            skip_clone=True,
            structured_outputs=StructuredOutputsParams(json=sampling.json_schema) if sampling.json_schema else None,
        )
        # Ends are banned before `min_tokens` also where they do not end the response: the contract has no exception.
        sampling_params._all_stop_token_ids.update(self.ends)
        return sampling_params


def _unsupported_settings(sampling: Sampling) -> Iterator[tuple[str, float, str]]:
    """Yields name, number and fix of settings refused, or silently replaced, by vLLM."""
    if 0 < sampling.temperature < COLDEST or sampling.temperature > HOTTEST_VLLM:
        yield "temperature", sampling.temperature, f"use 0, or {COLDEST:g} to {HOTTEST_VLLM:g}"
    if abs(sampling.presence_penalty) > HIGHEST_PRESENCE:
        yield "presence_penalty", sampling.presence_penalty, f"use -{HIGHEST_PRESENCE:g} to {HIGHEST_PRESENCE:g}"

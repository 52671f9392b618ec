"""`PolicySampler`: vLLM's sampler, with log-probabilities as defined by `Generation` and random numbers of this
project.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p
from vllm.v1.sample.sampler import Sampler

from rftd.workers.devices.pinned_transfer import to_device
from rftd.workers.engines.torch.rollout.noise import uniforms

PROCESSED: Final = 1
"""Value of `logprobs` for requests with processed log-probabilities; other requests have 0."""
KEY: Final = "rftd_key"
"""Name of the seed's key in a request's `extra_args`."""
_GREEDY: Final = 1e-5
"""vLLM's own bound: drawing is greedy below this temperature."""


class PolicySampler(Sampler):  # type: ignore[misc]
    """Returns each token's log-probability at its row's temperature, before any other change of the logits.

    vLLM's own modes ignore the temperature (`raw_logprobs`), or include top-k, top-p and the ban on early ends
    (`processed_logprobs`), and hold for all requests of an engine. Here the first column is the policy's own
    log-probability, and the second, if any row requests it, the one in the distribution behind the draw.

    Biases, penalties, bans and filters are vLLM's. A token is drawn by one random number, a function of its request's
    seed and its position, as in the torch engine: vLLM's generators have state, restored after a part of a prompt by a
    step that is right on some devices only.
    """

    def __init__(self, runner: Any) -> None:
        """`runner`: vLLM's model runner, which knows the request of each row."""
        super().__init__(logprobs_mode="raw_logprobs")
        self._runner = runner
        self._unmasked: torch.Tensor | None = None

    def keep_unmasked(self, logits: torch.Tensor) -> None:
        """Saves the model's own logits of the next batch, because a schema's mask overwrites them  # [N, V]"""
        self._unmasked = logits.to(torch.float32, copy=True)

    def forward(
        self,
        logits: torch.Tensor,
        sampling_metadata: Any,
        predict_bonus_token: bool = False,
        logprobs_mode_override: str | None = None,
    ) -> SamplerOutput:
        """Draws the next tokens of the batch, with log-probabilities  # [N, V] -> [N, 1], [N, 1 or 2]"""
        model_logits = logits if self._unmasked is None else self._unmasked
        self._unmasked = None
        columns = sampling_metadata.max_num_logprobs
        # A trial run of vLLM requests none.
        if columns is None:
            return super().forward(logits, sampling_metadata, predict_bonus_token, logprobs_mode_override)
        policy = _at_temperature(model_logits, sampling_metadata).log_softmax(-1)  # [N, V]
        adjusted = self.apply_logits_processors(logits.float(), sampling_metadata, predict_bonus_token)
        tokens = self.greedy_sample(adjusted)
        processed = torch.zeros_like(policy[:, 0])  # [N]
        if not sampling_metadata.all_greedy:
            tokens, processed = self._draw_tokens(adjusted, tokens, sampling_metadata)
        column = tokens.long().unsqueeze(1)  # [N, 1]
        logprob_columns = [policy.gather(1, column)]
        if columns >= PROCESSED:
            logprob_columns.append(processed.unsqueeze(1))
        logprobs = torch.cat(logprob_columns, 1)
        # Ranks are not requested; counting them would be another pass over the vocabulary.
        ranks = torch.zeros_like(column[:, 0])
        names = column.int().expand(-1, logprobs.shape[1]).contiguous()
        tensors = LogprobsTensors(names, logprobs, ranks)
        return SamplerOutput(sampled_token_ids=column.int(), logprobs_tensors=tensors)

    def _draw_tokens(
        self, adjusted: torch.Tensor, greedy: torch.Tensor, metadata: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Draws a token for each row; returns tokens, and log-probabilities in the distributions behind the draws (0 in
        `greedy` rows)  # [N], [N]

        `adjusted` is overwritten  # [N, V]
        """
        logits = self.apply_temperature(adjusted, metadata.temperature, metadata.all_random)
        for processor in metadata.logitsprocs.argmax_invariant:  # min_p
            logits = processor.apply(logits)
        weights = apply_top_k_top_p(logits, metadata.top_k, metadata.top_p).softmax(-1)
        # In float64: a float32 sum over 150,000 tokens loses the unlikely ones, and depends on its grouping.
        cumulative = weights.cumsum(-1, dtype=torch.float64)  # [N, V]
        total = cumulative[:, -1:]
        # right=True: the first entry above the target, which therefore has weight.
        tokens = torch.searchsorted(cumulative, self._uniforms(logits) * total, right=True)  # [N, 1]
        tokens = tokens.clamp_(max=logits.shape[1] - 1)  # only NaN is beyond
        processed = (weights.gather(1, tokens) / total).log().float()[:, 0]
        if metadata.all_random:
            return tokens[:, 0], processed
        at_zero = metadata.temperature < _GREEDY
        return torch.where(at_zero, greedy, tokens[:, 0]), processed.masked_fill(at_zero, 0.0)

    def _uniforms(self, logits: torch.Tensor) -> torch.Tensor:
        """Returns a random number for the next token of each row  # [N, 1]"""
        runner = self._runner
        requests = [runner.requests[name] for name in runner.input_batch.req_ids[: logits.shape[0]]]
        keys = [(request.sampling_params.extra_args or {}).get(KEY, 0) for request in requests]
        positions = [len(request.output_token_ids) for request in requests]
        numbers = uniforms(np.array(keys, np.uint64), np.array(positions, np.uint64))
        # Through pinned memory: vLLM begins a step while the previous one computes, and would otherwise block here.
        return to_device(numbers, logits.device).unsqueeze(1)


def _at_temperature(logits: torch.Tensor, metadata: Any) -> torch.Tensor:
    """Returns a copy of the logits, each row divided by its temperature; greedy rows by 1  # [N, V]"""
    # In float32 whatever the model's dtype: the trainer's ratio of policies divides by these probabilities.
    scaled = logits.to(torch.float32, copy=True)
    if metadata.temperature is None:  # all rows are greedy
        return scaled
    temperature = torch.where(metadata.temperature < _GREEDY, 1.0, metadata.temperature)
    return scaled.div_(temperature.unsqueeze(1))

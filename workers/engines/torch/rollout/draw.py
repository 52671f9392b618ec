"""Drawing: from logits to one token for each row, with the token's log-probability."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import numpy as np
import torch
from numpy.typing import NDArray

from rftd.workers.devices.pinned_transfer import to_device
from rftd.workers.engines.torch.rollout.adjust import Adjustments, Text, adjusts
from rftd.workers.engines.torch.rollout.noise import uniforms
from rftd.workers.generation.engine import Sampling

_NEVER = float("-inf")
"""Log-probability of a token that must not be drawn."""


class Draw:
    """Draws the next token of each row, with settings prepared once and used until the batch changes.

    A row's token depends on its own logits, sampling settings and position only.
    """

    def __init__(
        self,
        samplings: Sequence[Sampling],
        keys: Sequence[int],
        positions: Sequence[int],
        *,
        eos: torch.Tensor,
        device: torch.device,
        texts: Sequence[Text] = (),
    ) -> None:
        """`keys` are the rows' seeds as keys; `positions` the numbers of tokens already drawn; `eos` the ids that end a
        response  # [N], [N], [E]

        `texts` are the rows' prompts and drawn tokens, needed if any sampling `adjusts` logits  # [N]
        """
        self._keys = np.array(keys, dtype=np.uint64)
        self._positions = np.array(positions, dtype=np.uint64)
        self._eos = eos  # [E]
        self._device = device
        self._temperatures = np.array([s.temperature for s in samplings])
        self._top_ks = np.array([s.top_k for s in samplings])
        self._top_ps = np.array([s.top_p for s in samplings])
        self._min_ps = np.array([s.min_p for s in samplings])
        self._min_tokens = np.array([s.min_tokens for s in samplings])
        self._adjust = Adjustments(samplings, texts, device) if any(map(adjusts, samplings)) else None
        self._processes = any(s.processed_logprobs for s in samplings)
        self.processed: torch.Tensor | None = None
        """Log-probabilities of the last drawn tokens after filters and penalties; None unless requested by any row
        # [N]
        """
        self._prepare()

    def of(self, rows: NDArray[np.int64]) -> Draw:
        """Returns the drawing for these rows only, in this order, continuing at their positions."""
        selection = copy(self)
        for name in ("_keys", "_positions", "_temperatures", "_top_ks", "_top_ps", "_min_ps", "_min_tokens"):
            setattr(selection, name, getattr(self, name)[rows])
        selection._adjust = self._adjust and self._adjust.of(rows)
        if not self._plain:
            selection._prepare()
        return selection

    def _prepare(self) -> None:
        """Moves the settings of all rows to the device, in the form used by every draw."""
        device = self._device
        greedy = self._temperatures <= 0
        self._all_greedy, self._any_greedy = bool(greedy.all()), bool(greedy.any())
        self._greedy = to_device(greedy, device)
        # Log-probabilities of greedy rows are at temperature 1, as the engine's contract requires.
        scales = 1.0 / np.where(greedy, 1.0, self._temperatures)
        scaled = bool((scales != 1.0).any())
        self._scale = to_device(scales.astype(np.float32), device).unsqueeze(1) if scaled else None  # [N, 1]
        self._unended = int((self._min_tokens - self._positions.astype(np.int64)).max(initial=0))
        narrow = np.flatnonzero(~greedy & ((self._top_ps < 1.0) | (self._top_ks > 0) | (self._min_ps > 0)))
        self._narrow = to_device(narrow, device) if len(narrow) else None
        # Otherwise nothing below depends on the rows' settings.
        self._plain = not self._any_greedy and not scaled and not len(narrow)
        if self._narrow is None:
            return
        top_k = self._top_ks[narrow]
        top_p = self._top_ps[narrow]
        # 2^30 exceeds every vocabulary: a top_k without effect.
        self._top_k = to_device(np.where(top_k > 0, top_k, 1 << 30), device).unsqueeze(1)
        self._top_p = to_device(top_p.astype(np.float32), device).unsqueeze(1)
        self._min_p = to_device(self._min_ps[narrow].astype(np.float32), device).unsqueeze(1)

    def __call__(self, logits: torch.Tensor, of: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Draws the next token of each row; returns tokens and log-probabilities, and advances every row  # [N, V] ->
        [N], [N]

        `of`: index of each row's logits; None: the rows have separate logits  # [N]
        """
        if of is not None:
            logits = logits.index_select(0, of)
        # In float32 whatever the model's dtype: the trainer's ratio of policies divides by these probabilities.
        logits = logits.float()
        logprobs = torch.log_softmax(self._scaled(logits), -1)  # [N, V]
        adjusted = logprobs
        if self._adjust is not None:
            adjusted = torch.log_softmax(self._scaled(self._adjust(logits)), -1)
        choices = self._without_early_end(adjusted)
        if self._all_greedy:
            tokens = choices.argmax(-1)
            self.processed = torch.zeros_like(logprobs[:, 0]) if self._processes else None
        else:
            tokens = self._draw_tokens(choices)
            if self._any_greedy:
                tokens = torch.where(self._greedy, choices.argmax(-1), tokens)
                if self.processed is not None:
                    self.processed = self.processed.masked_fill(self._greedy, 0.0)
        if self._adjust is not None:
            self._adjust.drew(tokens)
        self._positions += np.uint64(1)
        self._unended -= 1
        return tokens, logprobs.gather(1, tokens.unsqueeze(1)).squeeze(1)

    def _scaled(self, logits: torch.Tensor) -> torch.Tensor:
        """Returns the logits divided by each row's temperature."""
        return logits if self._scale is None else logits * self._scale

    def _without_early_end(self, logprobs: torch.Tensor) -> torch.Tensor:
        """Returns the log-probabilities without end tokens, for rows with fewer than `min_tokens` drawn."""
        if self._unended <= 0 or not len(self._eos):
            return logprobs
        rows = np.flatnonzero(self._positions.astype(np.int64) < self._min_tokens)
        choices = logprobs.clone()
        choices[to_device(rows, self._device).unsqueeze(1), self._eos] = _NEVER
        return choices

    def _draw_tokens(self, choices: torch.Tensor) -> torch.Tensor:
        """Draws a token for each row by inverting the cumulative distribution at one uniform number  # [N, V] -> [N]"""
        weights = choices.exp()
        if self._narrow is not None:
            weights = weights.clone()
            selected = _narrow_weights(weights[self._narrow], self._top_k, self._top_p, self._min_p)
            weights[self._narrow] = selected
        # In float64: a float32 sum over 150,000 tokens loses the unlikely ones, and depends on its grouping.
        cumulative = weights.cumsum(-1, dtype=torch.float64)  # [N, V]
        uniform = to_device(uniforms(self._keys, self._positions), self._device).unsqueeze(1)
        # right=True: the first entry above the target, which therefore has weight.
        tokens = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True).squeeze(1)
        tokens = tokens.clamp_(max=choices.shape[1] - 1)  # only NaN is beyond
        if self._processes:
            selected = weights.gather(1, tokens.unsqueeze(1)) / cumulative[:, -1:]
            self.processed = selected.squeeze(1).log().float()
        return tokens


def _narrow_weights(
    weights: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor
) -> torch.Tensor:
    """Returns the weights within the sampling's limits; all others become 0  # [M, V]

    Preserved are weights of at least `min_p` times the heaviest, of these the `top_k` heaviest, and of these the fewest
    with `top_p` of the total weight.

    Source of min_p: Nguyen et al. 2024, arXiv 2407.01082, section 3.
    """
    ordered, order = weights.sort(-1, descending=True)
    ordered = ordered * (ordered >= min_p * ordered[:, :1])
    rank = torch.arange(weights.shape[1], device=weights.device)
    ordered = ordered * (rank < top_k)
    # Before, and not up to: the token crossing top_p belongs to the nucleus, so at least one token remains.
    before = ordered.cumsum(-1) - ordered
    ordered = ordered * (before < top_p * ordered.sum(-1, keepdim=True))
    return torch.zeros_like(weights).scatter_(1, order, ordered)

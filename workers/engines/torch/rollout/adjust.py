"""Changes of the logits before they are divided by the temperature: biases, and penalties of tokens that were there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from rftd.workers.devices.pinned_transfer import to_device
from rftd.workers.generation.engine import Sampling

Text: TypeAlias = tuple[Sequence[int], Sequence[int]]
"""The prompt's tokens, and those that were drawn."""
Index: TypeAlias = NDArray[np.int64]


def adjusts(sampling: Sampling) -> bool:
    """True if the sampling changes logits otherwise than by the temperature."""
    return bool(sampling.repetition_penalty != 1 or sampling.presence_penalty or sampling.logit_bias)


class Adjustments:
    """The changes to the rows of one batch. A row's depend on its own sampling and text only.

    All rows are changed at once, by tables on the device that each drawn token is marked in: no row is looked at from
    the host, and nothing is read back.
    """

    def __init__(self, samplings: Sequence[Sampling], texts: Sequence[Text], device: torch.device) -> None:
        """`texts`: of each row  # [N]"""
        self._samplings = samplings
        self._texts = texts
        self._device = device
        self._changed: Index = np.flatnonzero([adjusts(sampling) for sampling in samplings])  # [M]
        self._tables: _Tables | None = None

    def of(self, rows: Index) -> Adjustments | None:
        """The changes to these of the rows, in this order; None if none of them is changed."""
        made = Adjustments([self._samplings[row] for row in rows], [self._texts[row] for row in rows], self._device)
        if not len(made._changed):
            return None
        if self._tables is not None:
            places = np.searchsorted(self._changed, rows[made._changed])
            made._tables = self._tables.of(to_device(places, self._device), made._rows())
        return made

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        """The changed logits: first the bias, then the penalties  # [N, V] -> [N, V]

        The repetition penalty divides positive logits of tokens in the prompt or the response and multiplies negative
        ones (Keskar et al. 2019, arXiv 1909.05858, section 4.1, as transformers has it); the presence penalty is taken
        off once from each token of the response.
        """
        if self._tables is None:
            self._tables = self._made(logits.shape[1])
        rows = self._tables.rows
        if rows is None:
            return self._tables.changed(logits)
        return logits.index_copy(0, rows, self._tables.changed(logits.index_select(0, rows)))

    def drew(self, tokens: torch.Tensor) -> None:
        """Takes in the token that each row has drawn  # [N]"""
        assert self._tables is not None, "nothing was drawn before the logits were changed"
        self._tables.mark(tokens)

    def _rows(self) -> torch.Tensor | None:
        """The rows that are changed; None if all are  # [M]"""
        return None if len(self._changed) == len(self._samplings) else to_device(self._changed, self._device)

    def _made(self, vocabulary: int) -> _Tables:
        samplings = [self._samplings[row] for row in self._changed]
        texts = [self._texts[row] for row in self._changed]
        tables = _Tables(self._rows())
        if any(sampling.logit_bias for sampling in samplings):
            pairs = [dict(sampling.logit_bias) for sampling in samplings]
            at = self._places([list(each) for each in pairs])
            biases = np.array([bias for each in pairs for bias in each.values()], np.float32)
            tables.bias = torch.zeros(len(samplings), vocabulary, device=self._device)
            tables.bias.index_put_(at, to_device(biases, self._device))
        if any(sampling.repetition_penalty != 1 for sampling in samplings):
            tables.repetition = self._column([sampling.repetition_penalty for sampling in samplings])
            tables.seen = self._marked([[*prompt, *drawn] for prompt, drawn in texts], vocabulary)
        if any(sampling.presence_penalty for sampling in samplings):
            tables.presence = self._column([sampling.presence_penalty for sampling in samplings])
            tables.drawn = self._marked([drawn for _, drawn in texts], vocabulary)
        return tables

    def _column(self, numbers: Sequence[float]) -> torch.Tensor:
        return to_device(np.array(numbers, np.float32), self._device).unsqueeze(1)  # [M, 1]

    def _marked(self, tokens: Sequence[Sequence[int]], vocabulary: int) -> torch.Tensor:
        """True where a row has the token  # [M, V]"""
        marked = torch.zeros(len(tokens), vocabulary, dtype=torch.bool, device=self._device)
        return marked.index_put_(self._places(tokens), torch.ones((), dtype=torch.bool, device=self._device))

    def _places(self, tokens: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Row and column of every token."""
        rows = np.repeat(np.arange(len(tokens)), [len(each) for each in tokens])
        columns = np.fromiter(chain.from_iterable(tokens), np.int64)
        return to_device(rows, self._device), to_device(columns, self._device)


@dataclass(slots=True)
class _Tables:
    """The changes to M rows; a kind of change that none of them has is None."""

    rows: torch.Tensor | None  # [M], of the batch; None: all of them
    bias: torch.Tensor | None = None  # [M, V]
    repetition: torch.Tensor | None = None  # [M, 1]
    seen: torch.Tensor | None = None  # [M, V] bool, in the prompt or drawn
    presence: torch.Tensor | None = None  # [M, 1]
    drawn: torch.Tensor | None = None  # [M, V] bool

    def of(self, places: torch.Tensor, rows: torch.Tensor | None) -> _Tables:
        """The tables of some of the M rows, which are now at `rows` of the batch."""
        names = ("bias", "repetition", "seen", "presence", "drawn")
        kept = {name: table.index_select(0, places) for name in names if (table := getattr(self, name)) is not None}
        return replace(self, rows=rows, **kept)

    def changed(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits of the M rows, changed  # [M, V] -> [M, V]"""
        if self.bias is not None:
            logits = logits + self.bias
        if self.repetition is not None and self.seen is not None:
            penalised = torch.where(logits > 0, logits / self.repetition, logits * self.repetition)
            logits = torch.where(self.seen, penalised, logits)
        if self.presence is not None and self.drawn is not None:
            logits = logits - self.presence * self.drawn
        return logits

    def mark(self, tokens: torch.Tensor) -> None:
        """Takes in the tokens of the batch's rows  # [N]"""
        column = (tokens if self.rows is None else tokens.index_select(0, self.rows)).unsqueeze(1)
        for table in (self.seen, self.drawn):
            if table is not None:
                table.scatter_(1, column, True)

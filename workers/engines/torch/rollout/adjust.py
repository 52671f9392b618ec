"""Changes of the logits before the division by the temperature: biases, and penalties of earlier tokens."""

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
"""Tokens of a row: those of the prompt, and those drawn so far."""
Index: TypeAlias = NDArray[np.int64]
"""Array of indices of rows."""


def adjusts(sampling: Sampling) -> bool:
    """True if the sampling changes logits other than by the temperature."""
    return bool(sampling.repetition_penalty != 1 or sampling.presence_penalty or sampling.logit_bias)


class Adjustments:
    """The changes of logits for one batch's rows, each depending on the row's sampling settings and text only.

    All rows are changed at once, by tables on the device that record each drawn token: no row is examined on the host,
    and nothing is read back.
    """

    def __init__(self, samplings: Sequence[Sampling], texts: Sequence[Text], device: torch.device) -> None:
        """`samplings` and `texts` have one entry for each row  # [N]"""
        self._samplings = samplings
        self._texts = texts
        self._device = device
        self._changed: Index = np.flatnonzero([adjusts(sampling) for sampling in samplings])  # [M]
        self._tables: _Tables | None = None

    def of(self, rows: Index) -> Adjustments | None:
        """Returns the changes to these rows, in this order; None if no row is changed."""
        selection = Adjustments(
            [self._samplings[row] for row in rows], [self._texts[row] for row in rows], self._device
        )
        if not len(selection._changed):
            return None
        if self._tables is not None:
            indices = np.searchsorted(self._changed, rows[selection._changed])
            selection._tables = self._tables.of(to_device(indices, self._device), selection._rows())
        return selection

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        """Returns the changed logits: first the bias, then the penalties  # [N, V] -> [N, V]

        The repetition penalty divides positive logits of tokens in the prompt or the response and multiplies negative
        ones (Keskar et al. 2019, arXiv 1909.05858, section 4.1, as in transformers); the presence penalty is subtracted
        once for each token of the response.
        """
        if self._tables is None:
            self._tables = self._new_tables(logits.shape[1])
        rows = self._tables.rows
        if rows is None:
            return self._tables.changed(logits)
        return logits.index_copy(0, rows, self._tables.changed(logits.index_select(0, rows)))

    def drew(self, tokens: torch.Tensor) -> None:
        """Records the token drawn by each row, for later penalties  # [N]"""
        assert self._tables is not None, "nothing was drawn before the logits were changed"
        self._tables.mark(tokens)

    def _rows(self) -> torch.Tensor | None:
        """Returns the changed rows; None if all rows are changed  # [M]"""
        return None if len(self._changed) == len(self._samplings) else to_device(self._changed, self._device)

    def _new_tables(self, vocabulary: int) -> _Tables:
        """Builds the tables of the changed rows from their settings and texts."""
        samplings = [self._samplings[row] for row in self._changed]
        texts = [self._texts[row] for row in self._changed]
        tables = _Tables(self._rows())
        if any(sampling.logit_bias for sampling in samplings):
            pairs = [dict(sampling.logit_bias) for sampling in samplings]
            at = self._indices([list(bias_by_token) for bias_by_token in pairs])
            biases = np.array([bias for bias_by_token in pairs for bias in bias_by_token.values()], np.float32)
            tables.bias = torch.zeros(len(samplings), vocabulary, device=self._device)
            tables.bias.index_put_(at, to_device(biases, self._device))
        if any(sampling.repetition_penalty != 1 for sampling in samplings):
            tables.repetition = self._column([sampling.repetition_penalty for sampling in samplings])
            tables.seen = self._token_table([[*prompt, *drawn] for prompt, drawn in texts], vocabulary)
        if any(sampling.presence_penalty for sampling in samplings):
            tables.presence = self._column([sampling.presence_penalty for sampling in samplings])
            tables.drawn = self._token_table([drawn for _, drawn in texts], vocabulary)
        return tables

    def _column(self, numbers: Sequence[float]) -> torch.Tensor:
        """Returns numbers as a column on the device  # [M, 1]"""
        return to_device(np.array(numbers, np.float32), self._device).unsqueeze(1)  # [M, 1]

    def _token_table(self, tokens: Sequence[Sequence[int]], vocabulary: int) -> torch.Tensor:
        """Returns a table with True where a row has the token  # [M, V]"""
        marked = torch.zeros(len(tokens), vocabulary, dtype=torch.bool, device=self._device)
        return marked.index_put_(self._indices(tokens), torch.ones((), dtype=torch.bool, device=self._device))

    def _indices(self, tokens: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns row and column of every token."""
        rows = np.repeat(np.arange(len(tokens)), [len(row_tokens) for row_tokens in tokens])
        columns = np.fromiter(chain.from_iterable(tokens), np.int64)
        return to_device(rows, self._device), to_device(columns, self._device)


@dataclass(slots=True)
class _Tables:
    """The changes to M rows; None for a kind of change in no row."""

    rows: torch.Tensor | None  # [M], of the batch; None: all of them
    bias: torch.Tensor | None = None  # [M, V]
    repetition: torch.Tensor | None = None  # [M, 1]
    seen: torch.Tensor | None = None  # [M, V] bool, in the prompt or drawn
    presence: torch.Tensor | None = None  # [M, 1]
    drawn: torch.Tensor | None = None  # [M, V] bool

    def of(self, indices: torch.Tensor, rows: torch.Tensor | None) -> _Tables:
        """Returns the tables of some of the M rows, now at `rows` of the batch."""
        names = ("bias", "repetition", "seen", "presence", "drawn")
        selected = {
            name: table.index_select(0, indices) for name in names if (table := getattr(self, name)) is not None
        }
        return replace(self, rows=rows, **selected)

    def changed(self, logits: torch.Tensor) -> torch.Tensor:
        """Returns the logits of the M rows after bias and penalties  # [M, V] -> [M, V]"""
        if self.bias is not None:
            logits = logits + self.bias
        if self.repetition is not None and self.seen is not None:
            penalised = torch.where(logits > 0, logits / self.repetition, logits * self.repetition)
            logits = torch.where(self.seen, penalised, logits)
        if self.presence is not None and self.drawn is not None:
            logits = logits - self.presence * self.drawn
        return logits

    def mark(self, tokens: torch.Tensor) -> None:
        """Records the tokens of the batch's rows  # [N]"""
        column = (tokens if self.rows is None else tokens.index_select(0, self.rows)).unsqueeze(1)
        for table in (self.seen, self.drawn):
            if table is not None:
                table.scatter_(1, column, True)

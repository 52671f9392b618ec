"""Keys and values of the running requests.

All rows are right-aligned at one shared column, `end`: a request with n tokens in the cache occupies the columns
[end - n, end). So a decode step writes one column for all rows (a slice, no index), and the mask of a row stays the
same from step to step: everything before its first column is hidden.

        ....AAAAAAAA|
        .......BBBBB|      end = the bar; the next step writes there
        CCCCCCCCCCCC|
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from transformers.cache_utils import Cache

from rftd.workers.rollout.engines.torch.attention import masked

Rows: TypeAlias = Sequence[int] | NDArray[np.int64]
SLACK_COLUMNS: Final = 64
"""Columns are shifted back at most once in so many steps."""


class Prefilled(Cache):
    """Collects keys and values of whole prompts, layer by layer."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.keys: list[torch.Tensor] = []  # each [U, G, P, D]
        self.values: list[torch.Tensor] = []

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert layer_idx == len(self.keys), f"layer {layer_idx} after {len(self.keys)} layers"
        self.keys.append(key_states)
        self.values.append(value_states)
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0


class SlotCache(Cache):
    """A fixed number of rows; the first `rows` of them take part in a decode step."""

    def __init__(self, *, slots: int, max_len: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(layers=[])
        self._slots = slots
        self._max_len = max_len
        self._columns = max_len + SLACK_COLUMNS
        self._keys: list[torch.Tensor] = []  # each [S, G, C, D]
        self._values: list[torch.Tensor] = []
        self._hidden = torch.zeros(slots, self._columns, dtype=dtype, device=device)  # [S, C]
        self._masked = masked(dtype)
        self._column = torch.arange(self._columns, device=device)
        self._rows = 0
        self._first = 0
        self.end = 0

    def window(self, rows: int, width: int) -> torch.Tensor:
        """Opens the next column for `rows` rows, `width` columns back counting it; the mask  # [N, 1, 1, W]"""
        if self.end == self._columns:
            raise AssertionError("reserve() before window()")
        self._rows, self._first = rows, self.end + 1 - width
        return self._hidden[:rows, None, None, self._first : self.end + 1]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows, first, end = self._rows, self._first, self.end
        keys, values = self._keys[layer_idx][:rows], self._values[layer_idx][:rows]
        keys[:, :, end] = key_states[:, :, 0]
        values[:, :, end] = value_states[:, :, 0]
        return keys[:, :, first : end + 1], values[:, :, first : end + 1]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.end

    def advance(self) -> None:
        """The open column is written: it belongs to every row now."""
        self.end += 1

    def reserve(self, live: int, width: int, ahead: int) -> int:
        """Makes room: afterwards at least `ahead` columns lie before `end`, and one behind it.

        The last `width` columns of the first `live` rows are kept. Returns by how many columns they moved.
        """
        assert width <= self._max_len and ahead <= self._max_len, f"{width} or {ahead} of {self._max_len} columns"
        if not live:
            moved, self.end = ahead - self.end, ahead
            return moved
        if ahead <= self.end < self._columns:
            return 0
        target = max(width, ahead)
        moved = target - self.end
        old, new = slice(self.end - width, self.end), slice(target - width, target)
        for stored in (*self._keys, *self._values):
            stored[:live, :, new] = stored[:live, :, old].clone()
        self.end = target
        return moved

    def place(self, rows: Rows, prompts: Prefilled, sources: Rows) -> None:
        """Copies prompt `sources[i]` into row `rows[i]`, right-aligned at `end`; rows ascend."""
        if not self._keys:
            self._keys = [self._stored(states) for states in prompts.keys]
            self._values = [self._stored(states) for states in prompts.values]
        device = self._column.device
        first, last, source = int(rows[0]), int(rows[-1]), torch.as_tensor(sources, device=device)
        gapless = last - first == len(rows) - 1
        target = torch.as_tensor(rows, device=device)
        columns = slice(self.end - prompts.keys[0].shape[2], self.end)
        for stored, states in zip((*self._keys, *self._values), (*prompts.keys, *prompts.values), strict=True):
            if gapless:
                stored[first : last + 1, :, columns] = states.index_select(0, source)
            else:
                stored[:, :, columns].index_copy_(0, target, states.index_select(0, source))

    def move(self, sources: Rows, targets: Rows, width: int) -> None:
        """Each row of `targets` becomes what its row of `sources` was, in the last `width` columns."""
        device = self._column.device
        source, target = torch.as_tensor(sources, device=device), torch.as_tensor(targets, device=device)
        columns = slice(self.end - width, self.end)
        for stored in (*self._keys, *self._values):
            kept = stored[:, :, columns]
            kept.index_copy_(0, target, kept.index_select(0, source))

    def hide(self, starts: Rows) -> None:
        """Row i sees the columns from `starts[i]` on."""
        begin = torch.as_tensor(starts, device=self._column.device).unsqueeze(1)
        torch.mul(self._column < begin, self._masked, out=self._hidden[: len(starts)])

    def _stored(self, states: torch.Tensor) -> torch.Tensor:
        _, groups, _, size = states.shape
        return states.new_zeros(self._slots, groups, self._columns, size)

"""Keys and values of the running requests.

All rows are right-aligned at one shared column, `end`: a request with n tokens in the cache occupies the columns [end -
n, end). A decode step therefore writes one column for all rows (a slice, no index), and the mask of a row stays the
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

from rftd.workers.devices.pinned_transfer import to_device
from rftd.workers.engines.torch.rollout.attention import masked

Rows: TypeAlias = Sequence[int] | NDArray[np.int64]
"""Indices of rows of the cache."""
SLACK_COLUMNS: Final = 64
"""Columns are shifted back at most once in this number of steps."""


class Prefilled(Cache):
    """A cache for prefilling: collects keys and values of complete prompts, layer by layer."""

    def __init__(self) -> None:
        """Begins without layers."""
        super().__init__(layers=[])
        self.keys: list[torch.Tensor] = []  # each [U, G, P, D]
        self.values: list[torch.Tensor] = []

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Stores a layer's keys and values, and returns them unchanged; called by transformers once for each layer."""
        assert layer_idx == len(self.keys), f"layer {layer_idx} after {len(self.keys)} layers"
        self.keys.append(key_states)
        self.values.append(value_states)
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Returns 0: no tokens precede a complete prompt."""
        # Prompts are computed whole: no tokens precede them.
        return 0


class FixedWindow(Cache):
    """A view of the first rows and columns of a `SlotCache`; a step writes the column whose number is in the tensor
    `column`.
    """

    def __init__(
        self, keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor], width: int, column: torch.Tensor
    ) -> None:
        """`keys` and `values` of each layer  # [N, G, C, D]; `width` columns are visible; `column` is the written one
        # [1]
        """
        super().__init__(layers=[])
        self._keys = keys
        self._values = values
        self._width = width
        self._column = column

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes a layer's keys and values of one token into the column, and returns all visible columns."""
        keys = self._keys[layer_idx]
        values = self._values[layer_idx]
        keys.index_copy_(2, self._column, key_states)
        values.index_copy_(2, self._column, value_states)
        return keys[:, :, : self._width], values[:, :, : self._width]


class SlotCache(Cache):
    """Keys and values of a fixed number of rows, right-aligned at column `end`; the first rows take part in a decode
    step.
    """

    def __init__(self, *, slots: int, max_len: int, dtype: torch.dtype, device: torch.device) -> None:
        """Allocates masks for `slots` rows of `max_len` tokens; keys and values are allocated by the first prompt."""
        super().__init__(layers=[])
        self._slots = slots
        self._max_len = max_len
        self.columns = max_len + SLACK_COLUMNS
        self._keys: list[torch.Tensor] = []  # each [S, G, C, D]
        self._values: list[torch.Tensor] = []
        self._hidden = torch.zeros(slots, self.columns, dtype=dtype, device=device)  # [S, C]
        self._masked = masked(dtype)
        self._column = torch.arange(self.columns, device=device)
        self._rows = 0
        self._first = 0
        self.end = 0

    @property
    def full(self) -> bool:
        """True if there is no free column behind `end` for the next step."""
        return self.end == self.columns

    def window(self, rows: int, width: int) -> torch.Tensor:
        """Opens the next column for `rows` rows and returns the mask of the last `width` columns  # [N, 1, 1, W]"""
        if self.full:
            raise AssertionError("reserve() before window()")
        self._rows = rows
        self._first = self.end + 1 - width
        return self._hidden[:rows, None, None, self._first : self.end + 1]

    def fixed_window(self, rows: int, width: int, column: torch.Tensor) -> FixedWindow:
        """Returns a view of the first `width` columns of the first `rows` rows; a step writes the column in `column`
        # [1]
        """
        keys = [stored[:rows] for stored in self._keys]
        values = [stored[:rows] for stored in self._values]
        return FixedWindow(keys, values, width, column)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes a layer's keys and values of one token into column `end`, and returns all columns of the opened
        window.
        """
        rows = self._rows
        first = self._first
        end = self.end
        keys = self._keys[layer_idx][:rows]
        values = self._values[layer_idx][:rows]
        keys[:, :, end] = key_states[:, :, 0]
        values[:, :, end] = value_states[:, :, 0]
        return keys[:, :, first : end + 1], values[:, :, first : end + 1]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Returns the number of columns in use."""
        return self.end

    def advance(self) -> None:
        """Adds the column written by a step to every row, by moving `end`."""
        self.end += 1

    def reserve(self, live: int, width: int, ahead: int, *, until: int | None = None) -> int:
        """Makes room: afterwards at least `ahead` columns are before `end`, and one behind.

        Rows reaching the column `until`, or else the last, are moved back as far as possible. The last `width` columns
        of the first `live` rows are preserved. Returns the number of columns moved.
        """
        assert width <= self._max_len and ahead <= self._max_len, f"{width} or {ahead} of {self._max_len} columns"
        if not live:
            moved = ahead - self.end
            self.end = ahead
            return moved
        if ahead <= self.end < (self.columns if until is None else until):
            return 0
        target = max(width, ahead)
        moved = target - self.end
        old = slice(self.end - width, self.end)
        new = slice(target - width, target)
        for stored in (*self._keys, *self._values):
            # A clone, because old and new columns overlap.
            stored[:live, :, new] = stored[:live, :, old].clone()
        self.end = target
        return moved

    def place(self, rows: Rows, prompts: Prefilled, sources: Rows) -> None:
        """Copies prompt `sources[i]` into row `rows[i]`, right-aligned at `end`; rows ascend."""
        if not self._keys:
            self._keys = [self._new_states(states) for states in prompts.keys]
            self._values = [self._new_states(states) for states in prompts.values]
        device = self._column.device
        first = int(rows[0])
        last = int(rows[-1])
        source = to_device(sources, device)
        # Neighbouring rows, the usual case, are a slice, copied at once without an index.
        gapless = last - first == len(rows) - 1
        target = to_device(rows, device)
        columns = slice(self.end - prompts.keys[0].shape[2], self.end)
        for stored, states in zip((*self._keys, *self._values), (*prompts.keys, *prompts.values), strict=True):
            if gapless:
                stored[first : last + 1, :, columns] = states.index_select(0, source)
            else:
                stored[:, :, columns].index_copy_(0, target, states.index_select(0, source))

    def move(self, sources: Rows, targets: Rows, width: int) -> None:
        """Copies the last `width` columns of each row of `sources` into the row of `targets`, all at once."""
        device = self._column.device
        source = to_device(sources, device)
        target = to_device(targets, device)
        columns = slice(self.end - width, self.end)
        for stored in (*self._keys, *self._values):
            window = stored[:, :, columns]
            window.index_copy_(0, target, window.index_select(0, source))

    def clear(self, rows: Rows) -> None:
        """Sets these rows to zero, because NaN would reach the next request on a row even where hidden."""
        target = to_device(rows, self._column.device)
        for stored in (*self._keys, *self._values):
            stored.index_fill_(0, target, 0)

    def forget(self) -> None:
        """Frees keys and values, while no row needs them; the next prompt allocates them again."""
        self._keys = []
        self._values = []

    def hide(self, starts: Rows) -> None:
        """Makes row i see the columns from `starts[i]` on."""
        begin = to_device(starts, self._column.device).unsqueeze(1)
        torch.mul(self._column < begin, self._masked, out=self._hidden[: len(starts)])

    def _new_states(self, states: torch.Tensor) -> torch.Tensor:
        """Allocates zeros for all rows and columns, shaped like one layer's `states`."""
        _, groups, _, size = states.shape
        return states.new_zeros(self._slots, groups, self.columns, size)

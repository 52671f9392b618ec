"""`FixedSteps`: decode steps of a few shapes over tensors at fixed addresses, each recorded once and repeated.

A recording knows addresses and numbers, no Python. Everything that changes from step to step is therefore in tensors:
the tokens, their positions, the first column of each row, and the written column. The numbers of rows and columns are
rounded up: rows beyond the running ones are computed and discarded, and columns beyond the last are hidden.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

import torch

from rftd.workers.devices.pinned_transfer import to_device
from rftd.workers.engines.torch.rollout.attention import masked
from rftd.workers.engines.torch.rollout.cache import Rows, SlotCache
from rftd.workers.engines.torch.rollout.network import Network

Step = Callable[[], None]
"""Function computing one decode step on the device."""
LEAST_COLUMNS: Final = 128
"""Smallest number of columns of a recording."""


class Recorder(Protocol):
    """Records the work of a step on the device."""

    def record(self, step: Step) -> Step:
        """Returns a recording that repeats the device's work of `step`, after running `step` any number of times."""
        ...

    def forget(self) -> None:
        """Frees the memory of all recordings; none may run afterwards."""
        ...


class FixedSteps:
    """Decode steps through recordings, in place of `Network.decode`, for models with the lean forward."""

    def __init__(
        self, network: Network, cache: SlotCache, recorder: Recorder, *, ids: torch.Tensor, positions: torch.Tensor
    ) -> None:
        """`ids` and `positions` are the batch's own tensors, written in place by the batch  # [S, 1] each"""
        slots = len(ids)
        head = network.model.get_output_embeddings().weight
        self._network = network
        self._cache = cache
        self._recorder = recorder
        self._ids = ids
        self._positions = positions
        self._starts = torch.zeros_like(ids)  # [S, 1]
        self._end = torch.zeros(1, dtype=torch.long, device=ids.device)
        self._column = torch.arange(cache.columns, device=ids.device)  # [C]
        self._logits = torch.zeros(slots, len(head), dtype=network.dtype, device=ids.device)  # [S, V]
        self._row_counts = doubling_sizes(1, slots)
        self._widths = doubling_sizes(LEAST_COLUMNS, cache.columns)
        self._recorded: dict[tuple[int, int], Step] = {}
        self._weights: list[int] = []

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """Shapes (rows, columns) of the existing recordings."""
        return list(self._recorded)

    def columns_until(self, least: int) -> int:
        """Returns the column at which the cache shifts its rows back, if `least` columns suffice after the shift.

        A step attends to all columns from the first on. Rows shift where this at least halves the columns, so that a
        shift costs no more than the steps since the last one.
        """
        filled = [width for width in self._widths if width <= self._cache.end]
        return filled[-1] if filled and 2 * (least + 1) <= filled[-1] else self._cache.columns

    def arrange(self, starts: Rows) -> None:
        """Makes row i see the columns from `starts[i]` on; rows beyond get any token and position."""
        count = len(starts)
        self._starts[:count, 0] = to_device(starts, self._starts.device)
        # Unread rows are computed too, and must look up an existing token and angle.
        self._ids[count:] = 0
        self._positions[count:] = 0

    def __call__(self, count: int) -> torch.Tensor:
        """Returns the logits after one more token in each of the first `count` rows, valid until the next call  # [N,
        V]
        """
        end = self._cache.end
        shape = _smallest_size(self._row_counts, count), _smallest_size(self._widths, end + 1)
        self._end.fill_(end)
        if shape not in self._recorded:
            self._weights = self._addresses()
            self._recorded[shape] = self._recorder.record(partial(self._step, *shape))
        self._recorded[shape]()
        return self._logits[:count]

    def forget(self) -> None:
        """Discards the recordings: cache or weights will have new addresses."""
        self._recorded.clear()
        self._recorder.forget()

    def check_weights(self) -> None:
        """Discards the recordings if the weights have other addresses than when recorded."""
        if self._recorded and self._addresses() != self._weights:
            self.forget()

    def _addresses(self) -> list[int]:
        """Returns the memory addresses of all weights."""
        model = self._network.model
        return [tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers())]

    def _step(self, rows: int, width: int) -> None:
        """Computes a step over tensors living as long as the recordings; a second run has no further effect."""
        column = self._column[:width]
        hidden = (column < self._starts[:rows]) | (column > self._end)  # [N, W]
        dtype = self._network.dtype
        mask = torch.zeros(rows, width, dtype=dtype, device=column.device).masked_fill_(hidden, masked(dtype))
        window = self._cache.fixed_window(rows, width, self._end)
        ids = self._ids[:rows]
        self._logits[:rows] = self._network.decode(ids, self._positions[:rows], mask[:, None, None], window)


def doubling_sizes(first: int, last: int) -> list[int]:
    """Returns `first`, its double and so on, ending with `last`."""
    sizes = []
    while first < last:
        sizes.append(first)
        first *= 2
    return [*sizes, last]


def _smallest_size(sizes: list[int], least: int) -> int:
    """Returns the smallest of the ascending sizes that is at least `least`."""
    return next(size for size in sizes if size >= least)

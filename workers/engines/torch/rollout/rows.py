"""The rows of the cache, and the requests on them.

Requests joining with one prompt share a row as long as they draw the same tokens: the rollouts of a group are computed
once until they differ. In deterministic mode each request has a row of its own until it ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from rftd.workers.engines.torch.rollout.running import Running

Index = NDArray[np.int64]
"""Array of indices."""
_NONE: Final[Index] = np.zeros(0, dtype=np.int64)
"""No indices."""
_TOKEN_BITS: Final = 32
"""Bits of a token id, below those of its row in one number."""


class RowMoves(NamedTuple):
    """The changes of rows and requests after a step, to be applied to a batch's tensors."""

    sources: Index
    """Rows to be copied, before the change."""
    targets: Index
    """Rows to overwrite: row `targets[i]` becomes a copy of the old row `sources[i]`."""
    kept: Index
    """Old indices of the remaining requests, in their new order."""


class Rows(Protocol):
    """The running requests and their rows of the cache, shared or fixed."""

    requests: list[Running | None]
    """Requests in the order of their rows; None is a row without a request  # [N]"""
    of: Index
    """Row of each request  # [N]"""
    starts: Index
    """First column of each row  # [R]"""

    @property
    def live(self) -> list[Running]:
        """Running requests, without empty rows."""
        ...

    @property
    def shared(self) -> bool:
        """True if any row has several requests with one common sequence."""
        ...

    def tokens(self) -> Index:
        """Returns the last token of each row, its next input  # [R]"""
        ...

    def join(self, joining: Sequence[Running], sources: Sequence[int], starts: Sequence[int]) -> tuple[Index, Index]:
        """Assigns rows to new requests: request i uses prompt `sources[i]`, and prompt j begins at column `starts[j]`.
        Returns the new rows, and the prompt in each.
        """
        ...

    def settle(self, staying: Index) -> RowMoves:
        """Gives requests that drew different tokens separate rows, and removes all requests except those at the indices
        `staying`.
        """
        ...


class SharedRows:
    """One row for each distinct sequence, packed without gaps."""

    def __init__(self) -> None:
        """Begins without requests."""
        self.requests: list[Running | None] = []
        self.of = self.starts = _NONE

    @property
    def live(self) -> list[Running]:
        """Running requests, each on a row with all requests of an equal sequence."""
        return self.requests  # type: ignore[return-value]  # never None here

    @property
    def shared(self) -> bool:
        """True if any row has several requests."""
        return len(self.requests) > len(self.starts)

    def join(self, joining: Sequence[Running], sources: Sequence[int], starts: Sequence[int]) -> tuple[Index, Index]:
        """Appends one row for each prompt; requests with an equal prompt share the row."""
        before = len(self.starts)
        prompts = np.arange(len(starts))
        self.requests = [*self.requests, *joining]
        self.of = np.concatenate((self.of, np.array(sources) + before))
        self.starts = np.concatenate((self.starts, np.array(starts)))
        return prompts + before, prompts

    def settle(self, staying: Index) -> RowMoves:
        """Moves requests that drew different tokens to separate rows, and packs the rows without gaps."""
        if not len(staying):
            self.requests = []
            self.of = _NONE
            self.starts = _NONE
            return RowMoves(_NONE, _NONE, staying)
        # Row and last token in one number: requests of one row with equal tokens stay one sequence.
        sequences, of = np.unique(self.of[staying] << _TOKEN_BITS | self._last()[staying], return_inverse=True)
        parents = sequences >> _TOKEN_BITS
        count = len(sequences)
        # The first sequence of a parted row keeps the row, if it is in front; the others move to free rows.
        stays = (np.diff(parents, prepend=-1) != 0) & (parents < count)
        rows = parents.copy()
        rows[~stays] = np.setdiff1d(np.arange(count), parents[stays], assume_unique=True)
        at = np.argsort(rows)
        order = np.argsort(rows[of], kind="stable")
        staying = staying[order]
        self.requests = [self.requests[index] for index in staying]
        self.of = rows[of][order]
        self.starts = self.starts[parents][at]
        return RowMoves(parents[~stays], rows[~stays], staying)

    def tokens(self) -> Index:
        """Returns the last token of each row  # [R]"""
        tokens = np.empty_like(self.starts)
        tokens[self.of] = self._last()
        return tokens

    def _last(self) -> Index:
        """Returns the last token of each request  # [N]"""
        return np.array([request.tokens[-1] for request in self.live], dtype=np.int64)


class FixedRows:
    """A separate row for every slot, as in deterministic mode."""

    shared = False
    """False: every request has a separate row."""

    def __init__(self, slots: int) -> None:
        """Begins with `slots` empty rows."""
        self.requests: list[Running | None] = [None] * slots
        self.of = np.arange(slots)
        self.starts = np.zeros(slots, dtype=np.int64)

    @property
    def live(self) -> list[Running]:
        """Running requests, without empty rows."""
        return [request for request in self.requests if request is not None]

    def join(self, joining: Sequence[Running], sources: Sequence[int], starts: Sequence[int]) -> tuple[Index, Index]:
        """Assigns a free row to each new request."""
        # Tokens do not depend on the row: every step has one shape, and rows do not see each other.
        rows = [row for row, request in enumerate(self.requests) if request is None][: len(joining)]
        for row, request, source in zip(rows, joining, sources, strict=True):
            self.requests[row] = request
            self.starts[row] = starts[source]
        return np.array(rows), np.array(sources)

    def settle(self, staying: Index) -> RowMoves:
        """Empties the rows of requests that left; no row is moved."""
        stay = set(staying.tolist())
        self.requests = [request if row in stay else None for row, request in enumerate(self.requests)]
        return RowMoves(_NONE, _NONE, self.of)

    def tokens(self) -> Index:
        """Returns the last token of each row; 0 for an empty row  # [R]"""
        return np.array([0 if request is None else request.tokens[-1] for request in self.requests])

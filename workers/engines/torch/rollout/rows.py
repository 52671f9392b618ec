"""The rows of the cache, and the requests on them.

Requests that join with one prompt share a row as long as they draw the same tokens: the rollouts of a group are then
computed once, and apart from where they part. In deterministic mode each has a row to itself, which it keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from rftd.workers.engines.torch.rollout.running import Running

Index = NDArray[np.int64]
_NONE: Final[Index] = np.zeros(0, dtype=np.int64)
_TOKEN_BITS: Final = 32


class Settled(NamedTuple):
    """The moves of rows and requests that a batch has to follow."""

    sources: Index
    targets: Index
    """Row `targets[i]` is to become a copy of what row `sources[i]` was."""
    kept: Index
    """The old places of the requests that are left, in their new order."""


class Rows(Protocol):
    """Requests and their rows."""

    requests: list[Running | None]
    """Ordered by their rows; None is a row of its own without a request  # [N]"""
    of: Index
    """The row of each  # [N]"""
    starts: Index
    """The first column of each row  # [R]"""

    @property
    def live(self) -> list[Running]:
        """The requests that are there."""
        ...

    @property
    def shared(self) -> bool:
        """True if a row has several requests."""
        ...

    def tokens(self) -> Index:
        """The token that each row goes on with  # [R]"""
        ...

    def join(self, joining: Sequence[Running], sources: Sequence[int], starts: Sequence[int]) -> tuple[Index, Index]:
        """Gives them rows, in which the prompts `sources` begin at `starts`; rows, and the prompt that is in each."""
        ...

    def settle(self, kept: Index) -> Settled:
        """Parts what drew different tokens; of the requests only those at the places `kept` stay."""
        ...


class SharedRows:
    """Rows for different sequences only, packed from the first on."""

    def __init__(self) -> None:
        self.requests: list[Running | None] = []
        self.of = self.starts = _NONE

    @property
    def live(self) -> list[Running]:
        return self.requests  # type: ignore[return-value]  # none of them is None here

    @property
    def shared(self) -> bool:
        return len(self.requests) > len(self.starts)

    def join(self, joining: Sequence[Running], sources: Sequence[int], starts: Sequence[int]) -> tuple[Index, Index]:
        before = len(self.starts)
        prompts = np.arange(len(starts))
        self.requests = [*self.requests, *joining]
        self.of = np.concatenate((self.of, np.array(sources) + before))
        self.starts = np.concatenate((self.starts, np.array(starts)))
        return prompts + before, prompts

    def settle(self, kept: Index) -> Settled:
        if not len(kept):
            self.requests = []
            self.of = _NONE
            self.starts = _NONE
            return Settled(_NONE, _NONE, kept)
        # Row and last token in one number: requests of one row that drew the same token stay one sequence.
        sequences, of = np.unique(self.of[kept] << _TOKEN_BITS | self._last()[kept], return_inverse=True)
        parents = sequences >> _TOKEN_BITS
        count = len(sequences)
        # The first of those that part stays where it is, if that is in front; the others go where nobody is.
        stays = (np.diff(parents, prepend=-1) != 0) & (parents < count)
        places = parents.copy()
        places[~stays] = np.setdiff1d(np.arange(count), parents[stays], assume_unique=True)
        at = np.argsort(places)
        order = np.argsort(places[of], kind="stable")
        kept = kept[order]
        self.requests = [self.requests[place] for place in kept]
        self.of = places[of][order]
        self.starts = self.starts[parents][at]
        return Settled(parents[~stays], places[~stays], kept)

    def tokens(self) -> Index:
        tokens = np.empty_like(self.starts)
        tokens[self.of] = self._last()
        return tokens

    def _last(self) -> Index:
        return np.array([request.tokens[-1] for request in self.live], dtype=np.int64)


class FixedRows:
    """A row for every slot."""

    shared = False

    def __init__(self, slots: int) -> None:
        self.requests: list[Running | None] = [None] * slots
        self.of = np.arange(slots)
        self.starts = np.zeros(slots, dtype=np.int64)

    @property
    def live(self) -> list[Running]:
        return [request for request in self.requests if request is not None]

    def join(self, joining: Sequence[Running], sources: Sequence[int], starts: Sequence[int]) -> tuple[Index, Index]:
        # The row makes no difference to the tokens: every step has one shape, and rows do not see each other.
        rows = [row for row, request in enumerate(self.requests) if request is None][: len(joining)]
        for row, request, source in zip(rows, joining, sources, strict=True):
            self.requests[row] = request
            self.starts[row] = starts[source]
        return np.array(rows), np.array(sources)

    def settle(self, kept: Index) -> Settled:
        stay = set(kept.tolist())
        self.requests = [request if row in stay else None for row, request in enumerate(self.requests)]
        return Settled(_NONE, _NONE, self.of)

    def tokens(self) -> Index:
        return np.array([0 if request is None else request.tokens[-1] for request in self.requests])

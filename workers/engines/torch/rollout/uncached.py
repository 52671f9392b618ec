"""The slower computation, for models with state that the engine's own cache cannot hold: each request is computed
separately.

Recurrent states, convolutions and special attention are stored in transformers' cache, one for each request. A model
without a correct cache recomputes the complete text for each token.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any

import numpy as np
import torch

from rftd.workers.devices.pinned_transfer import to_device
from rftd.workers.engines.torch.rollout.batch import Batch
from rftd.workers.engines.torch.rollout.draw import Draw
from rftd.workers.engines.torch.rollout.network import Network
from rftd.workers.engines.torch.rollout.recordings import Recorder
from rftd.workers.engines.torch.rollout.responses import Responses
from rftd.workers.engines.torch.rollout.running import Finished, Running
from rftd.workers.engines.torch.rollout.transfer import Drawn


class Way(Enum):
    """How a model's tokens are computed; the values are used in the log and in errors."""

    SLOTS = "together, in the engine's own cache"
    """All requests in one batch, with the engine's own cache."""
    OWN_CACHE = "each request alone, in transformers' own cache"
    """Each request separately, with transformers' cache."""
    RECOMPUTED = "each request alone, its whole text again for each token"
    """Each request separately, without a cache."""


class UncachedText:
    """A text computed by the model's own forward, with transformers' cache or with none."""

    def __init__(self, network: Network, way: Way) -> None:
        """Begins a text for `network`, computed by `way` (other than `SLOTS`)."""
        assert way is not Way.SLOTS
        self._network = network
        self._cached = way is Way.OWN_CACHE
        accepted = inspect.signature(network.model.forward).parameters
        # Mamba's family names the cache argument differently from attention models.
        self._cache_name = "cache_params" if "cache_params" in accepted else "past_key_values"
        self._cache: Any = None
        self._cached_tokens = 0

    def logits(self, tokens: Sequence[int]) -> torch.Tensor:
        """Returns the logits after `tokens`, a continuation of the last call's  # [1, V]"""
        # Only tokens not yet in the cache: a state fed a token twice would differ.
        ids = to_device(np.array([tokens[self._cached_tokens :]], np.int64), self._network.device)
        cache_argument = {} if self._cache is None else {self._cache_name: self._cache}
        output = self._network.model(
            input_ids=ids, use_cache=self._cached, **cache_argument, **self._network.last_places(1)
        )
        if self._cached:
            self._cache = getattr(output, self._cache_name)
            self._cached_tokens = len(tokens)
        logits: torch.Tensor = output.logits[:, -1]
        return logits


class UncachedRequests:
    """A replacement for `Batch`; tokens are a function of the same (weights, prompt, seed).

    After new weights a cached state stays as computed by the old ones, like the keys and values of a `Batch`; the way
    without a cache computes everything with the new ones.
    """

    def __init__(self, network: Network, way: Way, *, slots: int) -> None:
        """Begins without requests; at most `slots` run at once, computed by `way`."""
        self._network = network
        self._way = way
        self._slots = slots
        self._responses = Responses(network)
        self._texts: dict[Running, tuple[UncachedText, Draw]] = {}
        self.version = (-1, -1)

    @property
    def live(self) -> list[Running]:
        """Running requests, in the order of joining."""
        return list(self._texts)

    @property
    def free(self) -> int:
        """Number of requests that may join now, out of `slots`."""
        return self._slots - len(self._texts)

    @property
    def tokens_total(self) -> int:
        """Total number of tokens drawn, over all requests."""
        return self._responses.tokens_total

    def forget(self) -> None:
        """Does nothing: states are freed with their requests, and none is running."""

    def caught_up(self) -> list[Finished]:
        """Returns nothing, because no step begins ahead."""
        return []

    def swapped(self, version: tuple[int, int]) -> None:
        """Records that the network now has the weights of `version`, from which the next tokens are drawn."""
        self.version = version
        for running in self._texts:
            running.mark(version)

    def join(self, newcomers: Sequence[Running]) -> list[Finished]:
        """Draws the first token of each newcomer; returns the requests finished by it."""
        assert 0 < len(newcomers) <= self.free
        for running in newcomers:
            running.mark(self.version)
            self._texts[running] = UncachedText(self._network, self._way), self._responses.drawing([running])
        return self._draw_all(newcomers)

    def step(self) -> list[Finished]:
        """Draws a token for every running request; returns the requests finished by it."""
        return self._draw_all(self.live)

    def drop(self, leaving: Iterable[Running]) -> None:
        """Removes cancelled requests with their states, freeing their slots."""
        for running in leaving:
            self._texts.pop(running, None)

    def _draw_all(self, requests: Sequence[Running]) -> list[Finished]:
        """Draws a token for each of `requests`; returns the requests finished by it."""
        done: list[Finished] = []
        for running in requests:
            text, draw = self._texts[running]
            tokens, logprobs = draw(text.logits([*running.request.prompt, *running.tokens]))
            drawn = Drawn(tokens, logprobs, draw.processed)
            done += self._responses.take([running], *drawn.read())
        self.drop(finished.running for finished in done)
        return done


def batch_of(
    network: Network, way: Way, *, slots: int, max_len: int, deterministic: bool, recorder: Recorder | None = None
) -> Batch | UncachedRequests:
    """Returns the container of running requests for a model's way of computing tokens."""
    if way is Way.SLOTS:
        return Batch(network, slots=slots, max_len=max_len, deterministic=deterministic, recorder=recorder)
    return UncachedRequests(network, way, slots=slots)

"""The slower way for models whose state the engine's own cache cannot hold: each request is computed alone.

Recurrent states, convolutions and attention of a model's own are kept by transformers' cache, one for each request. A
model that keeps nothing, or keeps it wrongly, computes the whole text again for each token.
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
    """The way in which a model's tokens are computed; the log and errors say it in these words."""

    SLOTS = "together, in the engine's own cache"
    OWN_CACHE = "each request alone, in transformers' own cache"
    RECOMPUTED = "each request alone, its whole text again for each token"


class LoneText:
    """A text that is computed by the model's own forward."""

    def __init__(self, network: Network, way: Way) -> None:
        assert way is not Way.SLOTS
        self._network = network
        self._cached = way is Way.OWN_CACHE
        accepted = inspect.signature(network.model.forward).parameters
        # Mamba's family calls the cache otherwise than attention does.
        self._name = "cache_params" if "cache_params" in accepted else "past_key_values"
        self._cache: Any = None
        self._seen = 0

    def logits(self, tokens: Sequence[int]) -> torch.Tensor:
        """Logits after `tokens`, which go on from those of the last call  # [1, V]"""
        # Only what the cache has not seen: a state that is fed a token twice is another state.
        ids = to_device(np.array([tokens[self._seen :]], np.int64), self._network.device)
        kept = {} if self._cache is None else {self._name: self._cache}
        output = self._network.model(input_ids=ids, use_cache=self._cached, **kept, **self._network.last_places(1))
        if self._cached:
            self._cache = getattr(output, self._name)
            self._seen = len(tokens)
        logits: torch.Tensor = output.logits[:, -1]
        return logits


class LoneRequests:
    """Stands in for a `Batch`; tokens are a function of the same (weights, prompt, seed).

    After new weights a cached state stays as the old ones computed it, as the keys and values of a `Batch` do; in the
    way without a cache everything is computed from the new ones.
    """

    def __init__(self, network: Network, way: Way, *, slots: int) -> None:
        self._network = network
        self._way = way
        self._slots = slots
        self._responses = Responses(network)
        self._texts: dict[Running, tuple[LoneText, Draw]] = {}
        self.version = (-1, -1)

    @property
    def live(self) -> list[Running]:
        """The running requests."""
        return list(self._texts)

    @property
    def free(self) -> int:
        """The number of requests that may join."""
        return self._slots - len(self._texts)

    @property
    def tokens_total(self) -> int:
        """The number of tokens drawn so far."""
        return self._responses.tokens_total

    def forget(self) -> None:
        """Gives nothing up: states go with their requests, and none is running."""

    def caught_up(self) -> list[Finished]:
        """Returns nothing: no step is begun ahead."""
        return []

    def swapped(self, version: tuple[int, int]) -> None:
        """Draws everything from these weights, from the next token on."""
        self.version = version
        for running in self._texts:
            running.mark(version)

    def join(self, newcomers: Sequence[Running]) -> list[Finished]:
        """Draws the first token of each; returns the requests that end with it."""
        assert 0 < len(newcomers) <= self.free
        for running in newcomers:
            running.mark(self.version)
            self._texts[running] = LoneText(self._network, self._way), self._responses.drawing([running])
        return self._drawn(newcomers)

    def step(self) -> list[Finished]:
        """Draws a token for every running request; returns the requests that end with it."""
        return self._drawn(self.live)

    def drop(self, leaving: Iterable[Running]) -> None:
        """Frees the slots of cancelled requests."""
        for running in leaving:
            self._texts.pop(running, None)

    def _drawn(self, requests: Sequence[Running]) -> list[Finished]:
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
) -> Batch | LoneRequests:
    """The running requests of a model that is computed in this way."""
    if way is Way.SLOTS:
        return Batch(network, slots=slots, max_len=max_len, deterministic=deterministic, recorder=recorder)
    return LoneRequests(network, way, slots=slots)

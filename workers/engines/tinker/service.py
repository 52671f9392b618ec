"""`TinkerService`: the interface between the engines and the service.

Numbers are returned unchecked: `answers` checks them against the request, so that every implementation, the package's
and the tests', is checked by the same lines. A call that raised counts as not executed: its run is abandoned, and
training continues from the newest saved state under a new generation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

Loss: TypeAlias = Literal["cross_entropy", "importance_sampling", "ppo"]
"""Losses computed by the service, each a sum over tokens:

cross_entropy        -w logprob
importance_sampling  -A r, with r = e^(logprob - old logprob)
ppo                  -min(A r, A clip(r, low, high))
"""


class AdapterShape(msgspec.Struct, frozen=True, kw_only=True):
    """The trained adapter of a service's model: rank, seed, and the adapted kinds of layers."""

    rank: int
    """Rank of the adapter's matrices."""
    seed: int | None
    """Seed of the initial numbers; None: chosen by the service."""
    train_mlp: bool
    """True: feed-forward layers are adapted."""
    train_attn: bool
    """True: attention layers are adapted."""
    train_unembed: bool
    """True: the output layer is adapted."""


class TokenRow(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence in the service's form: the first T - 1 tokens, the next token of each as its target, and numbers for
    each target.
    """

    tokens: NDArray[np.int64]  # [T - 1]
    targets: NDArray[np.int64]  # [T - 1]
    columns: Mapping[str, NDArray[np.float32]]  # [T - 1] each: weights; or advantages and logprobs
    """Numbers for each target, by the loss's parameter names."""


class AdamStep(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one AdamW step: learning rate, betas, epsilon, decay and clipping."""

    rate: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    clip: float
    """Maximum norm of the gradient; 0: unbounded."""


class PassAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The service's answer to a forward or gradient pass, not yet checked against the request."""

    rows: Sequence[Mapping[str, Any]]
    """A mapping for each row, with `logprobs`  # [T - 1]"""
    metrics: Mapping[str, Any]
    """Figures reported by the service, by name."""


class SampleAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request for one response, unchecked."""

    tokens: Any
    logprobs: Any
    stop_reason: Any


class ServiceSampling(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling settings of one response, limited to the settings supported by the service."""

    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int
    stop: tuple[str, ...] | tuple[int, ...] | None
    """Texts, or tokens, that end the response; None: the model's own end."""


class TrainingRun(Protocol):
    """An adapter with its optimizer at the service. Requests are executed once each, in the order of the calls.

    Every method blocks and raises WorkError if the request failed: the run must not be used afterwards.
    """

    @property
    def id(self) -> str:
        """Unique name of the run at the service."""
        ...

    def forward(self, rows: Sequence[TokenRow]) -> PassAnswer:
        """Computes log-probabilities under the current weights, without a gradient. The rows have `weights`."""
        ...

    def gradient(self, rows: Sequence[TokenRow], loss: Loss, config: Mapping[str, float]) -> PassAnswer:
        """Adds the gradient of a loss to the next step's gradient, irrevocably."""
        ...

    def step(self, adam: AdamStep, rows: Sequence[TokenRow] | None = None) -> Mapping[str, Any]:
        """Takes one optimizer step and returns the figures. With rows, the rows' `cross_entropy` gradient is sent
        along.
        """
        ...

    def save_state(self, name: str) -> Any:
        """Saves weights and optimizer, and returns the path for loading them, unchecked."""
        ...

    def save_weights(self, name: str) -> Callable[[], Any]:
        """Saves the current weights for samplers. Returns a function that waits for the path and returns it unchecked,
        callable on any thread.
        """
        ...


class Sampler(Protocol):
    """Generates with the weights of one path."""

    async def sample(self, prompt: Sequence[int], draw: ServiceSampling) -> SampleAnswer:
        """Draws one response. A cancelled request continues at the service. Raises RolloutError."""
        ...


class TinkerService(Protocol):
    """The service, under one key. Any thread may call it; calls other than coroutines block."""

    def new_run(self, base_model: str, shape: AdapterShape) -> TrainingRun:
        """Creates a run with a fresh adapter, which does not change the model yet. Raises ConfigError for an unknown
        model or a refused key.
        """
        ...

    def run_from(self, path: str, base_model: str, *, optimizer: bool) -> TrainingRun:
        """Creates a separate run from saved weights, with the saved optimizer or a fresh one.

        Raises DataError if the service has no such state.
        """
        ...

    def sampler(self, path: str) -> Sampler:
        """Creates a sampler for saved weights. Raises RolloutError if the service has no weights under the path."""
        ...

    def has(self, path: str) -> bool:
        """False if the service answers that nothing is stored under the path."""
        ...

    def delete(self, path: str) -> None:
        """Deletes a path at the service; a missing path is no error. Raises WorkError without an answer."""
        ...

    def answers(self) -> bool:
        """True if the service answers within seconds."""
        ...

    def close(self) -> None:
        """Ends the session and frees its resources at the service. Idempotent; raises nothing."""
        ...

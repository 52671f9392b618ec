"""`TinkerService`: what the engines ask of the service.

Numbers come back as they came: `answers` holds them against what was asked, so that every implementation, the package's
and a rehearsal's, is checked by the same lines. A call that raises has not happened as far as anybody here knows: the
run that it was made on is given up with it, and the history goes on from the newest state under a new generation (rule
8).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

Loss: TypeAlias = Literal["cross_entropy", "importance_sampling", "ppo"]
"""The losses that the service computes by itself, each a sum over tokens:

cross_entropy        -w logprob
importance_sampling  -A r, with r = e^(logprob - old logprob)
ppo                  -min(A r, A clip(r, low, high))
"""


class AdapterShape(msgspec.Struct, frozen=True, kw_only=True):
    """The adapter that is trained of a model of the service."""

    rank: int
    seed: int | None
    train_mlp: bool
    train_attn: bool
    train_unembed: bool


class TokenRow(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence as the service takes it: the token after each of its T - 1 first ones, and numbers for each."""

    tokens: NDArray[np.int64]  # [T - 1]
    targets: NDArray[np.int64]  # [T - 1]
    columns: Mapping[str, NDArray[np.float32]]  # [T - 1] each: weights; or advantages and logprobs
    """By the names of the loss that they are for."""


class AdamStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of AdamW."""

    rate: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    clip: float
    """The bound of the gradient's norm; 0: none."""


class PassAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a pass, unchecked."""

    rows: Sequence[Mapping[str, Any]]
    """A mapping for each row, with its `logprobs`  # [T - 1]"""
    metrics: Mapping[str, Any]


class SampleAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request for one response, unchecked."""

    tokens: Any
    logprobs: Any
    stop_reason: Any


class ServiceSampling(msgspec.Struct, frozen=True, kw_only=True):
    """The settings by which a response is drawn."""

    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int
    stop: tuple[str, ...] | tuple[int, ...] | None
    """Texts, or tokens, that end it; None: the model's own end."""


class TrainingRun(Protocol):
    """An adapter with its optimizer at the service. Requests are executed once each, in the order of the calls.

    Every method blocks and raises WorkError if the service has not done it: then nothing more may be asked of the run.
    """

    @property
    def id(self) -> str:
        """The service's name of the run, which no other has."""
        ...

    def forward(self, rows: Sequence[TokenRow]) -> PassAnswer:
        """Log-probabilities under the present weights, without a gradient. The rows have `weights`."""
        ...

    def gradient(self, rows: Sequence[TokenRow], loss: Loss, config: Mapping[str, float]) -> PassAnswer:
        """Adds the gradient of a loss to what the next step takes; it cannot be taken back."""
        ...

    def step(self, adam: AdamStep, rows: Sequence[TokenRow] | None = None) -> Mapping[str, Any]:
        """One optimizer step; its figures. With rows their `cross_entropy` gradient is sent together with it."""
        ...

    def save_state(self, name: str) -> Any:
        """Keeps weights and optimizer; the path under which they can be loaded, unchecked."""
        ...

    def save_weights(self, name: str) -> Callable[[], Any]:
        """Keeps the present weights for samplers. What it returns waits for their path, unchecked, on any thread."""
        ...


class Sampler(Protocol):
    """Generates with the weights of one path."""

    async def sample(self, prompt: Sequence[int], draw: ServiceSampling) -> SampleAnswer:
        """One response. Cancelling it leaves the service to itself. Raises RolloutError."""
        ...


class TinkerService(Protocol):
    """The service, under one key. Any thread may call it; what is not awaited blocks."""

    def new_run(self, base_model: str, shape: AdapterShape) -> TrainingRun:
        """A fresh adapter, which changes nothing yet. Raises ConfigError for a model that the service does not have,
        or a key that it refuses."""
        ...

    def run_from(self, path: str, base_model: str, *, optimizer: bool) -> TrainingRun:
        """A run of its own that begins with saved weights, and the optimizer saved with them or a fresh one.

        Raises DataError if the service has no such state.
        """
        ...

    def sampler(self, path: str) -> Sampler:
        """Raises RolloutError if the service has no such weights."""
        ...

    def has(self, path: str) -> bool:
        """False if the service says that it has nothing under this path."""
        ...

    def delete(self, path: str) -> None:
        """Has the service delete what lies there; what does not is no error. Raises WorkError if it did not answer."""
        ...

    def answers(self) -> bool:
        """True if the service answers within a moment."""
        ...

    def close(self) -> None:
        """Ends the session. Idempotent; raises nothing."""
        ...

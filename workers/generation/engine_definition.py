"""`RolloutEngineDefinition`: what the name of a rollout engine leads to. `EngineOpening`: what one is opened with.
`EnginePlan`: what is known of one when an experiment is submitted.

The module of a definition is imported by everything that only checks an experiment. It therefore imports what is heavy
(torch, an inference server) within `open`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from rftd.streams.spec.reach import OWNERS, ReachSpec
from rftd.streams.spec.spec import ModelSpec, RolloutSpec
from rftd.workers.devices.device_memory import EngineMemory
from rftd.workers.devices.host import Host

if TYPE_CHECKING:
    from rftd.ops.clock import Clock
    from rftd.workers.generation.engine import RolloutEngine

A = TypeVar("A", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOpening(Generic[A]):
    """Everything that a rollout engine is opened with; one engine serves all stages of an experiment."""

    model: ModelSpec
    """The model's folder and its lengths in tokens: an engine takes texts of up to `max_model_len` with the prompt."""
    rollout: RolloutSpec
    """The explorers of the experiment: among others the `dtype` that the model is run in."""
    arguments: A
    """`extra_engine_args` of the experiment file, checked."""
    slots: int
    """The number of requests that run at once."""
    threads: int
    """The number of threads to compute with, at least 1."""
    clock: Clock
    folder: Path
    """A folder that the engine may make and write to. The experiment's explorers share it, on all machines."""
    seed: int = 0
    """The experiment's. A request has a seed of its own."""
    deterministic: bool = False
    """True: a request's tokens have the same bits beside any neighbours, or `open` raises ConfigError."""
    biased: tuple[int, ...] = ()
    """The token ids that tasksets have a bias for."""
    reach: ReachSpec = OWNERS
    """The addresses and variables that the experiment may use."""
    gpus: range = range(0)
    """The numbers of the GPUs within the process's that it computes on; empty: it sees all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlan(Generic[A]):
    """A rollout engine that an experiment asks for, before anything is started: what its checks may look at."""

    model: ModelSpec
    """The model's folder, which is there, and its lengths in tokens."""
    rollout: RolloutSpec
    """The explorers of the stage: among others `dtype`, and in `needs` the devices and the share of them."""
    arguments: A
    """`extra_engine_args` of the experiment file, checked."""
    slots: int
    """The number of requests that run at once, at least."""
    host: Host
    """The machine of the workers. Of one that is not `seen`, and of a cluster, no device is known."""
    deterministic: bool = False


def _unknown(plan: EnginePlan[Any]) -> EngineMemory | None:
    return None


@dataclass(frozen=True, slots=True)
class RolloutEngineDefinition(Generic[A]):
    """A rollout engine that can be opened."""

    arguments: type[A]
    """The struct of `explorer.rollout_model.extra_engine_args`. `threads` is taken out of it before, for every engine.

    It is frozen and forbids unknown fields; all fields have defaults, for a file may leave each of them out.
    """
    open: Callable[[EngineOpening[A]], Awaitable[RolloutEngine]]
    """The engine, ready but for its first weights. What it started is stopped if it raises or is cancelled.

    Raises DataError if there is no such model, ConfigError if the arguments do not fit this machine, RolloutError for
    a model that the engine cannot run, DeviceMemoryError if the device has no room for it.
    """
    checks: Sequence[Callable[[EnginePlan[A]], None]] = ()
    """All are made when an experiment is submitted. Each raises ConfigError or DataError, with the field of the
    experiment file, for a model or a device that `open` could only fail on.

    They may read files, and import nothing heavy: the daemon runs them, on a thread. What they cannot know passes.
    """
    extra: str = ""
    """The extra of rftd, a key of `rftd.ops.extras.PACKAGES`, without which it cannot be opened; empty: it needs none.
    """
    memory: Callable[[EnginePlan[A]], EngineMemory | None] = _unknown
    """The memory that the engine takes of a device, if known. Engines that share a device are summed."""

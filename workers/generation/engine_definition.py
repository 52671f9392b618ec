"""`RolloutEngineDefinition`: an engine's declaration; `EngineOpening`: parameters for opening an engine; `EnginePlan`:
an engine's parameters known when an experiment is submitted.

The module of a definition is imported by every check of an experiment, so heavy imports (torch, an inference server)
belong inside `open`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from rftd.streams.spec.engines import OWNERS, ReachSpec
from rftd.streams.spec.spec import ModelSpec, RolloutSpec
from rftd.workers.devices.device_memory import EngineMemory
from rftd.workers.devices.host import Host

if TYPE_CHECKING:
    from rftd.ops.clock import Clock
    from rftd.workers.generation.engine import RolloutEngine

A = TypeVar("A", bound=msgspec.Struct)
"""Type of the engine's arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOpening(Generic[A]):
    """Everything an engine's `open` gets; one engine serves all stages of an experiment."""

    model: ModelSpec
    """The model's folder and its lengths in tokens: texts, prompt included, have at most `max_model_len` tokens."""
    rollout: RolloutSpec
    """The experiment's explorer settings, `dtype` among them."""
    arguments: A
    """`extra_engine_args` of the experiment file, checked."""
    slots: int
    """Number of requests running at once."""
    threads: int
    """Number of threads for computing, at least 1."""
    clock: Clock
    """Clock of the worker."""
    folder: Path
    """A folder for the engine to make and write to, shared by the experiment's explorers on all machines."""
    seed: int = 0
    """Seed of the experiment; each request has a seed of its own."""
    deterministic: bool = False
    """True: a request's tokens have the same bits beside any neighbours, or `open` raises ConfigError."""
    biased: tuple[int, ...] = ()
    """Token ids with a logit bias in some taskset."""
    reach: ReachSpec = OWNERS
    """Addresses and variables available to the experiment."""
    gpus: range = range(0)
    """Indices of the GPUs to compute on, among the process's GPUs; empty: all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlan(Generic[A]):
    """A rollout engine as requested by an experiment, for the checks before anything is started."""

    model: ModelSpec
    """The model's folder, which exists, and its lengths in tokens."""
    rollout: RolloutSpec
    """The stage's explorer settings: `dtype`, and in `needs` the devices and the share of them, among others."""
    arguments: A
    """`extra_engine_args` of the experiment file, checked."""
    slots: int
    """Number of requests running at once, at least."""
    host: Host
    """The workers' machine; its devices are unknown if it is a cluster or not `seen`."""
    deterministic: bool = False
    """True: answers must have the same bits beside any neighbours."""


def _unknown_memory(plan: EnginePlan[Any]) -> EngineMemory | None:
    """Returns None: the engine's memory is unknown."""
    return None


@dataclass(frozen=True, slots=True)
class RolloutEngineDefinition(Generic[A]):
    """A rollout engine's declaration: arguments, opening, checks and memory."""

    arguments: type[A]
    """Struct of `explorer.rollout_model.extra_engine_args`, without `threads`, which is removed first for every engine.

    The struct is frozen and forbids unknown fields; all fields have defaults, because a file may omit any of them.
    """
    open: Callable[[EngineOpening[A]], Awaitable[RolloutEngine]]
    """Opens the engine, ready except for its first weights; stops whatever it started if it raises or is cancelled.

    Raises DataError for a missing model, ConfigError for arguments that do not fit this machine, RolloutError for a
    model that the engine cannot run, DeviceMemoryError if the device has too little memory.
    """
    checks: Sequence[Callable[[EnginePlan[A]], None]] = ()
    """Checks made when an experiment is submitted; each raises ConfigError or DataError, with the field of the
    experiment file, for a model or a device with which `open` would fail.

    They may read files but import nothing heavy: the daemon runs them on a thread. Unknown facts pass.
    """
    extra: str = ""
    """Required extra of rftd, a key of `rftd.ops.extras.PACKAGES`; empty: none."""
    environment: tuple[str, ...] = ()
    """Names of the environment variables read by the engine; a built-in engine's worker gets them from the daemon."""
    memory: Callable[[EnginePlan[A]], EngineMemory | None] = _unknown_memory
    """Returns the device memory needed by the engine, if known; the needs of engines sharing a device are summed."""

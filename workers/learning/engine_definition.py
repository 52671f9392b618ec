"""`TrainerEngineDefinition`: a trainer engine's entry in the registry. `TrainerOpening`: the arguments of its making.

Mere checks of an experiment import the module of a definition. Heavy imports (torch, a training library) therefore
belong into `make`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from rftd.streams.spec.engines import OWNERS, ReachSpec
from rftd.streams.spec.spec import StageSpec, TrainerSpec
from rftd.workers.devices.device_memory import Need
from rftd.workers.learning.losses.demands import Part

if TYPE_CHECKING:
    from rftd.workers.learning.engine import TrainerEngine

A = TypeVar("A", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerOpening(Generic[A]):
    """The arguments of making a trainer engine, before `open` with the experiment and the model."""

    trainer: TrainerSpec
    """Section `trainer` of the first stage. Each stage's own comes with `begin_stage`."""
    arguments: A
    """`engine_args` of the first stage, checked."""
    threads: int
    """The number of threads to compute with, at least 1."""
    reach: ReachSpec = OWNERS
    """The addresses and variables that the experiment may use."""


@dataclass(frozen=True, slots=True)
class TrainerEngineDefinition(Generic[A]):
    """A trainer engine as registered: arguments, making, and checks without the engine."""

    arguments: type[A]
    """The struct of `trainer.engine_args`. `threads` and `dtype` are taken out of it before, for every engine.

    It is frozen and forbids unknown fields; all fields have defaults, for a file may leave each of them out.
    """
    make: Callable[[TrainerOpening[A]], TrainerEngine]
    """The engine, not opened yet: nothing is loaded and no process is started."""
    extra: str = ""
    """The extra of rftd, a key of `rftd.ops.extras.PACKAGES`, without which it cannot be made; empty: it needs none."""
    environment: tuple[str, ...] = ()
    """Names of the environment variables read by the engine; a built-in engine's worker gets them from the daemon."""
    opened_with: tuple[str, ...] = ()
    """The arguments that are taken when the engine is opened, for every stage; the others are each stage's own."""
    lacks: Mapping[Part, str] = field(default_factory=dict)
    """The parts that it cannot give, each with the reason in words: an objective that needs one is refused."""
    needs: Callable[[StageSpec, Path, int], list[Need]] | None = None
    """The least that each of so many devices holds while a stage trains from a model's folder; None: nobody knows."""
    forecast: Callable[[StageSpec, Path, int], list[Need]] | None = None
    """The forecast of one device's peak memory, by stage, model folder and number of devices; None: there is none."""
    trains: Callable[[StageSpec, Path], None] | None = None
    """Raises ConfigError for a model's folder that it cannot train as the stage says; None: it trains every model."""

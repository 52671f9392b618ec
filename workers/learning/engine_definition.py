"""`TrainerEngineDefinition`: a trainer engine's entry in the registry. `TrainerOpening`: the arguments of its
construction.

Even a check of an experiment file imports the module of a definition, so heavy imports (torch, a training library)
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
"""Type of the engine's arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerOpening(Generic[A]):
    """The arguments for constructing a trainer engine; experiment and model follow in `open`."""

    trainer: TrainerSpec
    """Section `trainer` of the first stage; each stage's own section follows in `begin_stage`."""
    arguments: A
    """`engine_args` of the first stage, parsed and checked."""
    threads: int
    """Number of threads for computations, at least 1."""
    reach: ReachSpec = OWNERS
    """The network addresses and secret variables that the experiment may use."""


@dataclass(frozen=True, slots=True)
class TrainerEngineDefinition(Generic[A]):
    """A trainer engine as registered: its arguments, its constructor, and checks without the engine."""

    arguments: type[A]
    """The struct of `trainer.engine_args`, without `threads` and `dtype`, which are common to all engines.

    The struct is frozen and forbids unknown fields; all fields have defaults, because a file may omit each.
    """
    make: Callable[[TrainerOpening[A]], TrainerEngine]
    """Returns the engine before `open`: nothing is loaded and no process is started."""
    extra: str = ""
    """The extra of rftd, a key of `rftd.ops.extras.PACKAGES`, that must be installed for the engine; empty: none."""
    environment: tuple[str, ...] = ()
    """Names of the environment variables read by the engine; a built-in engine's worker gets them from the daemon."""
    opened_with: tuple[str, ...] = ()
    """Names of arguments that take effect when the engine is opened, for all stages; all others may differ by stage."""
    lacks: Mapping[Part, str] = field(default_factory=dict)
    """Capabilities that the engine lacks, each with the reason in words: an objective that needs one is refused."""
    needs: Callable[[StageSpec, Path, int], list[Need]] | None = None
    """Function of stage, model folder and number of devices: the least memory used on each device in training; None:
    unknown.
    """
    forecast: Callable[[StageSpec, Path, int], list[Need]] | None = None
    """Function of stage, model folder and number of devices: the expected peak memory of each device; None: unknown."""
    trains: Callable[[StageSpec, Path], None] | None = None
    """Function of stage and model folder: raises ConfigError for a model that the engine cannot train; None: it trains
    every model.
    """

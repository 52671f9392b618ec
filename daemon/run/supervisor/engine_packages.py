"""The packages needed by an experiment's engines, where the daemon starts workers and where the daemon runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rftd.daemon.run.supervisor.findings import Findings
from rftd.ops.extras import PACKAGES, TORCH, missing_of, not_installed
from rftd.streams.spec.spec import ExperimentSpec, StageSpec
from rftd.workers.devices.host import Host
from rftd.workers.generation import engine_registry as rollout_engines
from rftd.workers.learning import engine_registry as trainer_engines


class _NeededEngine(NamedTuple):
    """An engine opened by a worker of a stage."""

    field: str
    """Field of the file naming the engine."""
    name: str
    """Name of the engine."""
    extra: str
    """Extra of this package that installs the engine's packages."""
    host: Host
    """Machine of the workers opening the engine."""


def check_packages(stage: StageSpec, host: Host, findings: Findings) -> None:
    """Reports to `findings` the engines of a stage whose packages are missing on `host`; unknown for a host not yet
    inspected.

    An engine installed nowhere is reported by another check.
    """
    engines: list[_NeededEngine] = []
    with findings.of(stage):
        engines += _engines(stage, host)
    for engine in engines:
        missing = [name for name in PACKAGES.get(engine.extra, ()) if name not in engine.host.packages]
        if engine.host.seen and missing:
            with findings.of(stage):
                raise not_installed(engine.extra, f"the {engine.name} engine", missing, field=engine.field)


def left_to_workers(spec: ExperimentSpec) -> Iterator[str]:
    """Yields a warning about checks that need the workers' packages and are therefore made by the workers."""
    missing = missing_of(TORCH)
    if missing and any(engine.extra for stage in spec.stages for engine in _engines(stage, Host())):
        names = ", ".join(missing)
        yield f"the kind of the model and its tokenizer are left to workers to check: the daemon runs without {names}"


def _engines(stage: StageSpec, host: Host) -> Iterator[_NeededEngine]:
    """Yields each engine opened by a worker of the stage. Raises ConfigError for an engine not installed here."""
    if stage.kind != "train":
        name = stage.rollout.engine
        yield _NeededEngine("explorer.rollout_model.engine_type", name, rollout_engines.lookup(name).extra, host)
        for number, auxiliary in enumerate(stage.auxiliary):
            if not auxiliary.served:
                field = f"explorer.auxiliary_models[{number}].engine_type"
                yield _NeededEngine(field, auxiliary.engine, rollout_engines.lookup(auxiliary.engine).extra, host)
    if stage.kind != "explore":
        name = stage.trainer.engine
        yield _NeededEngine("trainer.trainer_type", name, trainer_engines.lookup(name).extra, host.for_trainers)

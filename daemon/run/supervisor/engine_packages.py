"""The packages that an experiment's engines need, where the daemon starts workers and where it runs itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rftd.daemon.run.supervisor.findings import Findings
from rftd.ops.extras import PACKAGES, TORCH, missing_of, not_installed
from rftd.streams.spec.spec import ExperimentSpec, StageSpec
from rftd.workers.devices.host import Host
from rftd.workers.generation import engine_registry as rollout_engines
from rftd.workers.learning import engine_registry as trainer_engines


class _Engine(NamedTuple):
    field: str
    name: str
    extra: str
    host: Host


def check_packages(stage: StageSpec, host: Host, found: Findings) -> None:
    """Finds engines whose packages are missing on `host`; on one that nobody has looked at, workers see for themselves.

    An engine that nobody has here is found by others.
    """
    engines: list[_Engine] = []
    with found.of(stage):
        engines += _engines(stage, host)
    for engine in engines:
        missing = [name for name in PACKAGES.get(engine.extra, ()) if name not in engine.host.packages]
        if engine.host.seen and missing:
            with found.of(stage):
                raise not_installed(engine.extra, f"the {engine.name} engine", missing, field=engine.field)


def left_to_workers(spec: ExperimentSpec) -> Iterator[str]:
    """A warning of what the daemon cannot look at without the packages that workers have."""
    missing = missing_of(TORCH)
    if missing and any(engine.extra for stage in spec.stages for engine in _engines(stage, Host())):
        names = ", ".join(missing)
        yield f"the kind of the model and its tokenizer are left to workers to check: the daemon runs without {names}"


def _engines(stage: StageSpec, host: Host) -> Iterator[_Engine]:
    """Each engine that a worker of the stage opens. Raises ConfigError for one that is not here."""
    if stage.kind != "train":
        name = stage.rollout.engine
        yield _Engine("explorer.rollout_model.engine_type", name, rollout_engines.lookup(name).extra, host)
        for number, auxiliary in enumerate(stage.auxiliary):
            if not auxiliary.served:
                field = f"explorer.auxiliary_models[{number}].engine_type"
                yield _Engine(field, auxiliary.engine, rollout_engines.lookup(auxiliary.engine).extra, host)
    if stage.kind != "explore":
        name = stage.trainer.engine
        yield _Engine("trainer.trainer_type", name, trainer_engines.lookup(name).extra, host.for_trainers)

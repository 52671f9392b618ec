"""`worker_orders`: the workers wanted by an experiment, each with the arguments of its process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from rftd.ops.plugins import Plugins
from rftd.ops.processors import most
from rftd.streams.spec.engines import SERVE_KEY
from rftd.streams.spec.explorer_devices import explorer_devices
from rftd.streams.spec.spec import ExperimentSpec, StageSpec, TrainerSpec
from rftd.streams.spec.stage_tasks import tasksets_of
from rftd.workers.generation.engine_registry import ENGINES as ROLLOUT_ENGINES
from rftd.workers.hosts.executor import WorkerOrder
from rftd.workers.learning.engine_registry import ENGINES as TRAINER_ENGINES


def worker_orders(experiment: UUID, spec: ExperimentSpec, spine_offset: int) -> Iterator[WorkerOrder]:
    """Yields the workers wanted by a specification: one trainer, and explorers if any stage explores or evaluates."""
    logs = Path(spec.job_dir) / "log"
    namespace = spec.cluster.namespace or f"{spec.project}/{spec.name}"
    cluster = msgspec.structs.replace(spec.cluster, namespace=namespace)
    yield WorkerOrder(
        experiment=experiment,
        role="trainer",
        slot=-1,
        threads=most(stage.trainer.threads for stage in spec.stages),
        log_path=logs / "trainer.log",
        devices=max(stage.trainer.devices for stage in spec.stages),
        nodes=most_nodes(stage.trainer for stage in spec.stages),
        cluster=cluster,
        log_level=spec.log_level,
        paths=read_by("trainer", spec.stages),
        environment=variables_of("trainer", spec),
        spine_offset=spine_offset,
    )
    exploring = [stage for stage in spec.stages if stage.kind != "train"]
    explorers = max((stage.rollout.explorers for stage in exploring), default=0)
    for slot in range(explorers):
        yield WorkerOrder(
            experiment=experiment,
            role="explorer",
            slot=slot,
            threads=most(stage.rollout.threads for stage in exploring),
            log_path=logs / f"explorer_{slot}.log",
            devices=explorer_devices(exploring),
            start_timeout_s=max(stage.rollout.needs.start_timeout_s for stage in exploring),
            cluster=cluster,
            log_level=spec.log_level,
            paths=read_by("explorer", exploring),
            environment=variables_of("explorer", spec),
            spine_offset=spine_offset,
        )


def most_nodes(trainers: Iterable[TrainerSpec]) -> int:
    """Returns the number of machines of a trainer's ranks, in the stage with the most."""
    return max(int(trainer.engine_args.get("nodes", 1)) for trainer in trainers)


def variables_of(role: str, spec: ExperimentSpec) -> tuple[str, ...]:
    """Returns the names of the daemon's environment variables needed by workers of a role.

    Of the variables named by the specification, everybody but the owner gets only granted ones.
    """
    named = set[str]()
    ours = set[str]()
    for stage in spec.stages:
        if role == "trainer":
            named |= _of_engine(TRAINER_ENGINES, stage.trainer.engine, stage.trainer.engine_args)
        elif stage.kind != "train":
            named |= _of_engine(ROLLOUT_ENGINES, stage.rollout.engine, stage.rollout.engine_args) | set(
                stage.rollout.environment
            )
            ours |= {SERVE_KEY} if stage.serving is not None else set()
        if role == "explorer":  # an explorer opens the models of all stages
            named |= {name for model in stage.auxiliary for name in (model.base_url_env, model.api_key_env)}
    return tuple(sorted(ours | {name for name in named if name and spec.reach.may_read(name)}))


def _of_engine(engines: Plugins[Any], engine: str, arguments: Mapping[str, Any]) -> set[str]:
    """Returns the variables read by an engine: those named in its arguments, and a built-in engine's declared ones."""
    named = {argument for name, argument in arguments.items() if name.endswith("_env") and isinstance(argument, str)}
    return named | set(engines.load(engine).environment if engines.builtin(engine) else ())


def read_by(role: str, stages: Iterable[StageSpec]) -> tuple[str, ...]:
    """Returns the folders and files of models and datasets read by workers of a role, needed where they run."""
    paths: set[str] = set()
    for stage in stages:
        paths |= {stage.model.path, stage.model.lora.path if stage.model.lora is not None else ""}
        if role == "trainer":
            paths |= {stage.trainer.critic_path, stage.trainer.teacher_path}
            paths |= set(stage.dataset.paths) if stage.dataset is not None else set()
        else:
            paths |= {path for taskset in (*tasksets_of(stage), *stage.evals) for path in taskset.paths}
            paths |= {model.path for model in stage.auxiliary}
    return tuple(sorted(path for path in paths if Path(path).is_absolute()))

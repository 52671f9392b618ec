"""The verl trainer engine's entry in the registry; importable without torch and verl."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rftd.ops.errors import ConfigError
from rftd.ops.extras import TORCH
from rftd.streams.spec.spec import StageSpec
from rftd.workers.devices.device_memory import Need, elements_of
from rftd.workers.devices.engine_build import how_to_install
from rftd.workers.engines.verl.arguments import OPENED_WITH, VerlTrainerArgs, check_heads, parse
from rftd.workers.learning.engine_definition import TrainerEngineDefinition, TrainerOpening
from rftd.workers.learning.memory_needs import training_forecast, training_needs

if TYPE_CHECKING:
    from rftd.workers.engines.ranks.messages import RankPlace
    from rftd.workers.learning.engine import TrainerEngine


def _needs(stage: StageSpec, base: Path, devices: int) -> list[Need]:
    """Returns the least memory of one device: parts over `fsdp_size` devices or all; with offloading, only the
    policy's.

    With Megatron, parts over `tensor_model_parallel_size` devices, plus its separate parameters.
    """
    arguments = parse(stage.trainer.engine_args)
    if arguments.strategy == "megatron":
        parts = arguments.tensor_model_parallel_size
        half = stage.trainer.dtype == "bfloat16"
        own = Need("Megatron's parameters", (2 if half else 4) * elements_of(base) // parts)
        return [*training_needs(stage, base, spread=parts), own]
    size = arguments.fsdp_size
    needs = training_needs(stage, base, spread=size if 0 < size < devices else devices)
    if arguments.param_offload or arguments.optimizer_offload or arguments.ref_param_offload:
        # Weights and gradients are there together in its backward pass, whatever else comes and goes.
        return [needs[0], needs[1], needs[-1]]
    return needs


def _forecast(stage: StageSpec, base: Path, devices: int) -> list[Need]:
    """Returns the expected peak memory under FSDP without offloading, with the logits of a complete micro-batch; else
    the least memory.
    """
    arguments = parse(stage.trainer.engine_args)
    offloads = arguments.param_offload or arguments.optimizer_offload or arguments.ref_param_offload
    if arguments.strategy == "megatron" or offloads or arguments.activation_offload:
        return _needs(stage, base, devices)
    size = arguments.fsdp_size
    return training_forecast(stage, base, spread=size if 0 < size < devices else devices, whole_logits=True)


def _check_trainable(stage: StageSpec, folder: Path) -> None:
    """Raises ConfigError for a model that the engine cannot train with the stage's arguments."""
    arguments = parse(stage.trainer.engine_args)
    if arguments.strategy == "megatron":
        from rftd.workers.engines.verl.megatron.sizes import check_model  # it knows these arguments

        check_model(folder, arguments)
    else:
        check_heads(arguments, folder)


def make_rank(place: RankPlace) -> TrainerEngine:
    """Constructs the engine of one rank, in its own process, within the existing process group of all ranks."""
    from rftd.workers.engines.verl.engine import VerlTrainerEngine

    return VerlTrainerEngine(threads=place.threads)


def _make(opening: TrainerOpening[VerlTrainerArgs]) -> TrainerEngine:
    """Makes the engine in the trainer process, or an engine of several ranks. Raises ConfigError if verl is not
    installed.
    """
    if find_spec("verl") is None:
        raise ConfigError(
            "verl is not installed here",
            field="trainer.trainer_type",
            fix=f"{how_to_install('verl')}; or write torch",
        )
    arguments = opening.arguments
    # On GPUs one for each that the launcher gave this worker.
    ranks = opening.trainer.devices or arguments.ranks
    if ranks > 1:
        from rftd.workers.engines.ranks.controller import RankedEngine, RankPlan

        return RankedEngine(
            RankPlan(
                maker=f"{__name__}:{make_rank.__name__}",
                ranks=ranks,
                trainer=opening.trainer,
                threads=opening.threads,
                backend="nccl" if opening.trainer.devices and arguments.device != "cpu" else "gloo",
                timeout_s=arguments.rank_timeout_s,
            )
        )
    from rftd.workers.engines.verl.engine import VerlTrainerEngine

    return VerlTrainerEngine(threads=opening.threads)


ENGINE: Final = TrainerEngineDefinition(
    arguments=VerlTrainerArgs,
    make=_make,
    extra=TORCH,
    opened_with=OPENED_WITH,
    needs=_needs,
    forecast=_forecast,
    trains=_check_trainable,
)
"""Definition of the trainer engine `verl`."""

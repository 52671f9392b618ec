"""The table of trainer engines. Imports an engine only when it is asked for."""

from __future__ import annotations

from typing import Final

import msgspec

from rftd.ops.errors import ConfigError
from rftd.ops.processors import threads_of
from rftd.streams.spec import TrainerSpec
from rftd.workers.training.engine import TrainerEngine

ENGINES: Final = ("torch", "fake")


def arguments_of(engine: str) -> type[msgspec.Struct] | None:
    """The arguments below `trainer.engine_args`; None for an engine that is not here. Imports no torch."""
    if engine == "fake":
        from rftd.workers.training.engines.fake import FakeTrainerArgs

        return FakeTrainerArgs
    if engine == "torch":
        from rftd.workers.training.engines.torch.arguments import TorchTrainerArgs

        return TorchTrainerArgs
    return None


def opened_with(engine: str) -> tuple[str, ...]:
    """The arguments that the engine takes when it is opened, for every stage; the others are each stage's own."""
    if engine == "torch":
        from rftd.workers.training.engines.torch.arguments import OPENED_WITH

        return OPENED_WITH
    return ()


def make_engine(spec: TrainerSpec) -> TrainerEngine:
    """The trainer engine that a stage names, not opened yet. Raises ConfigError."""
    if spec.engine == "fake":
        from rftd.workers.training.engines.fake import FakeTrainerEngine

        return FakeTrainerEngine(spec.engine_args)
    if spec.engine == "torch":
        from rftd.workers.training.engines.torch.engine import TorchTrainerEngine

        return TorchTrainerEngine(threads=threads_of(spec.threads))
    raise ConfigError(f"no trainer engine {spec.engine!r}", fix=f"one of {', '.join(ENGINES)}")

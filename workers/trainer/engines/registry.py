"""The table of trainer engines. Imports an engine only when it is asked for."""

from __future__ import annotations

from typing import Final

from rftd.ops.errors import ConfigError
from rftd.ops.processors import threads_of
from rftd.streams.spec import TrainerSpec
from rftd.workers.trainer.engine import TrainerEngine

ENGINES: Final = ("torch", "fake")


def make_engine(spec: TrainerSpec) -> TrainerEngine:
    """The trainer engine that a stage names, not opened yet. Raises ConfigError."""
    if spec.engine == "fake":
        from rftd.workers.trainer.engines.fake import FakeTrainerEngine

        return FakeTrainerEngine(spec.engine_args)
    if spec.engine == "torch":
        from rftd.workers.trainer.engines.torch.engine import TorchTrainerEngine

        return TorchTrainerEngine(threads=threads_of(spec.threads))
    raise ConfigError(f"no trainer engine {spec.engine!r}", fix=f"one of {', '.join(ENGINES)}")

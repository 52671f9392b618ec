"""`rounding_warnings` tells of folders for transformers rounded below the numbers that evaluations compute in."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rftd.streams.spec.spec import ExperimentSpec, StageSpec
from rftd.workers.devices.device_memory import settings_of

EXACT: Final = "float32"
"""Number format of explorers that compute without rounding."""
_ROUNDED: Final = ("bfloat16", "float16")
"""Number formats with fewer bits than `EXACT`."""


def rounding_warnings(spec: ExperimentSpec) -> list[str]:
    """Returns a warning for each model exported in fewer bits than explorers compute in. Blocks."""
    paths = dict.fromkeys(stage.model.path for stage in spec.stages if _exports_what_it_draws(stage))
    dtypes = {path: _dtype_of(Path(path)) for path in paths}
    return [
        f"model.model_path: the weights in {path!r} are {dtype}, and explorers compute in {EXACT}: the folder "
        f"huggingface of a checkpoint is rounded to {dtype} and may answer otherwise than evaluations; "
        f"rftd convert --dtype {EXACT} writes the exact weights"
        for path, dtype in dtypes.items()
        if dtype in _ROUNDED
    ]


def _exports_what_it_draws(stage: StageSpec) -> bool:
    """True if the stage's explorers compute in float32, and its trainer writes folders for transformers."""
    drawn = stage.kind == "both" and stage.rollout.engine != "fake" and stage.rollout.dtype == EXACT
    return drawn and stage.trainer.engine not in ("fake", "tinker") and stage.trainer.save_hf != "never"


def _dtype_of(folder: Path) -> str:
    """Returns the number format named in a model's config.json; empty if unknown."""
    settings = settings_of(folder)
    return str(settings.get("dtype") or settings.get("torch_dtype") or "").removeprefix("torch.")

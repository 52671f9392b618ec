"""Every kind of tracker by name; importing the module imports no tracker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from rftd.ops.plugins import Plugins

_VARIABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "wandb": ("WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_ENTITY", "WANDB_MODE"),
    "mlflow": ("MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN"),
    "swanlab": ("SWANLAB_API_KEY", "SWANLAB_API_HOST", "SWANLAB_WEB_HOST", "SWANLAB_WORKSPACE", "SWANLAB_MODE"),
    "trackio": ("TRACKIO_DIR",),
}
"""Environment variables that a tracker reads by itself, if they exist."""

if TYPE_CHECKING:
    from rftd.workers.tracking.tracker import Tracker

TRACKERS: Final[Plugins[Tracker]] = Plugins(
    "tracker",
    group="rftd.trackers",
    table={
        "jsonl": "rftd.workers.tracking.jsonl:JsonLines",
        "console": "rftd.workers.tracking.console:Console",
        "tensorboard": "rftd.workers.tracking.tensorboard:TensorBoard",
        "wandb": "rftd.workers.tracking.wandb:WeightsAndBiases",
        "mlflow": "rftd.workers.tracking.mlflow:MlflowRuns",
        "swanlab": "rftd.workers.tracking.swanlab:SwanLab",
        "trackio": "rftd.workers.tracking.trackio:Trackio",
    },
    extras={kind: (kind, kind) for kind in ("wandb", "mlflow", "swanlab", "trackio")},
)
"""Plug-ins of the kind "tracker": built-in ones, and entry points of the group `rftd.trackers`."""

SERVICES: Final[Mapping[str, tuple[str, str]]] = {
    "wandb": ("WANDB_API_KEY", "https://api.wandb.ai"),
    "mlflow": ("", "http://localhost:5000"),
    "swanlab": ("SWANLAB_API_KEY", "https://api.swanlab.cn"),
}
"""Trackers that send over a network: the variable of the key, and the default address."""


def variables_of(kind: str) -> tuple[str, ...]:
    """Returns the variables, including keys, read by a tracker of the kind besides the variables in arguments."""
    return _VARIABLES.get(kind, ())

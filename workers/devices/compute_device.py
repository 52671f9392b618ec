"""The device that a torch engine computes on, chosen alike by the trainer and by explorers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from rftd.ops.errors import ConfigError

if TYPE_CHECKING:
    import torch

DeviceName: TypeAlias = Literal["auto", "cpu", "cuda"]
"""The names of devices in `engine_args`; known without torch, which takes seconds to import."""


def compute_device(name: DeviceName, *, deterministic: bool, field: str) -> torch.device:
    """The device named in `field`; `auto` is cuda if there is one and the experiment is not deterministic.

    Raises ConfigError for cuda where torch sees no such device.
    """
    import torch

    found = torch.cuda.is_available()
    if name == "cuda" and not found:
        raise ConfigError(
            f"the device is 'cuda', and torch {torch.__version__} finds none on this machine",
            field=field,
            fix="write auto or cpu, or run this worker where nvidia-smi lists a GPU",
        )
    # Sums on a GPU have no fixed order, so `auto` keeps deterministic experiments on the CPU.
    if name == "auto":
        name = "cuda" if found and not deterministic else "cpu"
    return torch.device(name)

"""The device of a torch engine, chosen alike by the trainer and by explorers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from rftd.ops.errors import ConfigError

if TYPE_CHECKING:
    import torch

DeviceName: TypeAlias = Literal["auto", "cpu", "cuda"]
"""Names of devices in `engine_args`; known without torch, whose import takes seconds."""


def compute_device(name: DeviceName, *, deterministic: bool, field: str) -> torch.device:
    """Returns the device named in `field`; `auto` is cuda if there is one and the experiment is not deterministic.

    Raises ConfigError for cuda if torch finds no such device.
    """
    import torch

    has_cuda = torch.cuda.is_available()
    if name == "cuda" and not has_cuda:
        raise ConfigError(
            f"the device is 'cuda', and torch {torch.__version__} finds none on this machine",
            field=field,
            fix="write auto or cpu, or run this worker where nvidia-smi lists a GPU",
        )
    # Sums on a GPU have no fixed order, so `auto` keeps deterministic experiments on the CPU.
    if name == "auto":
        name = "cuda" if has_cuda and not deterministic else "cpu"
    return torch.device(name)

"""Device memory: the sizes needed by an engine, compared with the free memory before anything is loaded."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from rftd.ops.errors import DeviceMemoryError, WorkError
from rftd.workers.devices.host import Device
from rftd.workers.weights import safetensors

_GROUP: Final = Path("/sys/fs/cgroup")
"""Folder of this process's control group, within a container."""
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
"""Units of sizes, each 1024 times the one before."""


class Need(NamedTuple):
    """A part of an engine's memory on its device, and its size in bytes."""

    what: str
    """Name of the part, for errors."""
    size_bytes: int
    """Size of the part."""


class EngineMemory(NamedTuple):
    """The memory needed by one engine on one device, in parts."""

    device: Device
    """The device."""
    needs: tuple[Need, ...]
    """The parts."""

    @property
    def size_bytes(self) -> int:
        """Total of the needs in bytes."""
        return sum(need.size_bytes for need in self.needs)


def check_memory(needs: Sequence[Need], device: str, *, where: str, fix: str) -> None:
    """Raises DeviceMemoryError, with the arithmetic, if the device has less free memory than all needs together.

    `device` is `cpu`, or a CUDA device as torch names it.
    """
    free_bytes = free_on(device)
    total_bytes = sum(need.size_bytes for need in needs)
    if total_bytes <= free_bytes:
        return
    raise DeviceMemoryError(
        f"{shown(total_bytes)} are needed at least ({terms_of(needs)}), and {device} has {shown(free_bytes)} free",
        where=where,
        fix=fix,
    )


def terms_of(needs: Sequence[Need]) -> str:
    """Returns the needs as a sum in words, for an error."""
    return " + ".join(f"{need.what} {shown(need.size_bytes)}" for need in needs if need.size_bytes)


def free_on(device: str) -> int:
    """Returns the bytes still available on a device: on a CPU within the limit of this process's control group."""
    if device != "cpu":
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    import psutil

    available = int(psutil.virtual_memory().available)
    # In a container the machine's free memory says nothing: the kernel kills at the limit of the control group.
    group_bytes = _free_in_group(_GROUP)
    return available if group_bytes is None else min(available, group_bytes)


def elements_of(folder: Path) -> int:
    """Returns the number of a model's parameters, read from the headers of its safetensors files.

    Unreadable files count as 0: loading them raises the reason.
    """
    elements = 0
    for file in weight_files(folder):
        # The loader reports an unreadable header, with more details.
        with suppress(WorkError):
            elements += sum(math.prod(tensor.shape) for tensor in safetensors.read(file).values())
    return elements


def tensor_names(folder: Path) -> frozenset[str]:
    """Returns the names of a model's weights, by the readable headers of its safetensors files."""
    names: set[str] = set()
    for file in weight_files(folder):
        with suppress(WorkError):
            names |= safetensors.read(file).keys()
    return frozenset(names)


def weight_files(folder: Path) -> list[Path]:
    """Returns the safetensors files that a loader would open: model.safetensors, else the files of the index, else all.
    The folder may contain the same weights once more, in another layout.
    """
    whole = folder / "model.safetensors"
    try:
        if whole.is_file():
            return [whole]
        index = json.loads((folder / "model.safetensors.index.json").read_bytes())
        return [folder / name for name in sorted({Path(str(name)).name for name in index["weight_map"].values()})]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return list(folder.glob("*.safetensors"))


def settings_of(folder: Path) -> dict[str, Any]:
    """Returns the settings of a model's text part, from its config.json; {} if unreadable."""
    try:
        settings = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(settings, dict):
        return {}
    text = settings.get("text_config")
    return text if isinstance(text, dict) else settings


def number_in(settings: dict[str, Any], *names: str) -> int:
    """Returns the first integer among the settings with these names; 0 without one."""
    return next((settings[name] for name in names if isinstance(settings.get(name), int)), 0)


def shown(size_bytes: int) -> str:
    """Returns the size with three digits and a unit: 1.25 GiB."""
    size = float(size_bytes)
    for unit in _UNITS[:-1]:
        if size < 1024:
            return f"{size:.3g} {unit}" if size < 1000 else f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.3g} {_UNITS[-1]}"


def _free_in_group(group: Path) -> int | None:
    """Returns the bytes below the limit of the control group; None without one. Files only cached count as free."""
    try:
        limit = (group / "memory.max").read_text().strip()
        used = int((group / "memory.current").read_text())
        figures = dict(line.split(maxsplit=1) for line in (group / "memory.stat").read_text().splitlines())
        # Cached files are counted as used, and dropped by the kernel as soon as memory is short.
        return None if limit == "max" else max(0, int(limit) - used + int(figures.get("inactive_file", "0")))
    except (OSError, ValueError):
        return None

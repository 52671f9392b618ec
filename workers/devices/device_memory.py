"""Device memory: the sizes that an engine needs, held against what is free before anything is loaded."""

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
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


class Need(NamedTuple):
    """A thing that an engine keeps on its device, and its size."""

    what: str
    size_bytes: int


class EngineMemory(NamedTuple):
    """The memory that one engine takes of one device."""

    device: Device
    needs: tuple[Need, ...]

    @property
    def size_bytes(self) -> int:
        """All of it."""
        return sum(need.size_bytes for need in self.needs)


def check_memory(needs: Sequence[Need], device: str, *, where: str, fix: str) -> None:
    """Returns if the device has room for all of them together. Raises DeviceMemoryError with the arithmetic.

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
    """The needs as a sum in words."""
    return " + ".join(f"{need.what} {shown(need.size_bytes)}" for need in needs if need.size_bytes)


def free_on(device: str) -> int:
    """The bytes that can still be had on a device: of a CPU within the limit of this process's control group."""
    if device != "cpu":
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    import psutil

    available = int(psutil.virtual_memory().available)
    # In a container the machine's free memory says nothing: the kernel kills at the limit of the control group.
    within = _free_in_group(_GROUP)
    return available if within is None else min(available, within)


def elements_of(folder: Path) -> int:
    """The number of a model's weights, by the headers of its safetensors files.

    Files that cannot be read count for nothing: whoever loads them says what is wrong.
    """
    found = 0
    for file in weight_files(folder):
        # A header that cannot be read is the loader's to complain about, with more to say.
        with suppress(WorkError):
            found += sum(math.prod(each.shape) for each in safetensors.read(file).values())
    return found


def tensor_names(folder: Path) -> frozenset[str]:
    """The names of a model's weights, by the headers of its safetensors files that can be read."""
    names: set[str] = set()
    for file in weight_files(folder):
        with suppress(WorkError):
            names |= safetensors.read(file).keys()
    return frozenset(names)


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that are loaded: a folder may hold the same weights once more, in another layout."""
    whole = folder / "model.safetensors"
    try:
        if whole.is_file():
            return [whole]
        index = json.loads((folder / "model.safetensors.index.json").read_bytes())
        return [folder / name for name in sorted({Path(str(name)).name for name in index["weight_map"].values()})]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return list(folder.glob("*.safetensors"))


def settings_of(folder: Path) -> dict[str, Any]:
    """The settings of a model's text part, from its config.json; {} if it cannot be read."""
    try:
        settings = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(settings, dict):
        return {}
    text = settings.get("text_config")
    return text if isinstance(text, dict) else settings


def number_in(settings: dict[str, Any], *names: str) -> int:
    """The first of these settings that is a number; 0 if none is."""
    return next((settings[name] for name in names if isinstance(settings.get(name), int)), 0)


def shown(size_bytes: int) -> str:
    """The size with three digits and its unit: 1.25 GiB."""
    size = float(size_bytes)
    for unit in _UNITS[:-1]:
        if size < 1024:
            return f"{size:.3g} {unit}" if size < 1000 else f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.3g} {_UNITS[-1]}"


def _free_in_group(group: Path) -> int | None:
    """The bytes below the limit of the control group; None without one. Files that are only cached count as free."""
    try:
        limit = (group / "memory.max").read_text().strip()
        used = int((group / "memory.current").read_text())
        figures = dict(line.split(maxsplit=1) for line in (group / "memory.stat").read_text().splitlines())
        # Cached files are counted as used, and given up by the kernel as soon as memory is short.
        return None if limit == "max" else max(0, int(limit) - used + int(figures.get("inactive_file", "0")))
    except (OSError, ValueError):
        return None

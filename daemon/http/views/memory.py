"""The memory of an experiment's workers against their devices: as expected at acceptance, and as measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from rftd.daemon.cli.output.quantity import size

if TYPE_CHECKING:
    from rftd.streams.spec.engines import WorkerMemory


class MemoryRow(msgspec.Struct, frozen=True, kw_only=True):
    """The workers of a stage on one device: expected and measured memory."""

    role: str
    """Role of the workers that share the device."""
    stage: str
    """Name of the stage for which the workers run."""
    workers: int
    """Number of workers sharing the device."""
    device: str
    """Name of the device that the workers share."""
    device_bytes: int
    """Memory of the whole device."""
    size_bytes: int
    """Expected peak of one worker, with the longest texts."""
    needs: dict[str, int]
    """Parts of the expected peak, in bytes."""
    used_bytes: int | None
    """Resident memory of the largest living worker, libraries included, at its last heartbeat."""
    peak_bytes: int | None = None
    """Largest resident memory of an ended worker of the role, over all stages; null if none has ended or reported."""


def rows_of(memory: Iterable[WorkerMemory], used_bytes: Mapping[tuple[str, str], int] | None = None) -> list[MemoryRow]:
    """Returns the rows as answered by the API, with the present use of the largest worker by role and stage."""
    return [
        MemoryRow(
            role=row.role,
            stage=row.stage,
            workers=row.workers,
            device=row.device,
            device_bytes=row.device_bytes,
            size_bytes=sum(need.size_bytes for need in row.needs),
            needs={need.what: need.size_bytes for need in row.needs},
            used_bytes=(used_bytes or {}).get((row.role, row.stage)),
        )
        for row in memory
    ]


def with_peaks(rows: Iterable[MemoryRow], peak_bytes: Mapping[str, int]) -> list[MemoryRow]:
    """Returns the rows with the largest memory of an ended worker of their role."""
    return [msgspec.structs.replace(row, peak_bytes=peak_bytes.get(row.role)) for row in rows]


def memory_line(row: MemoryRow) -> str:
    """Returns the row in one line: `trainer of rft: 2.7 GiB of 23.4 GiB of CPU: weights 513.1 MiB + gradients ...`."""
    several = f"{row.workers} x " if row.workers > 1 else ""
    needs = " + ".join(f"{need} {size(size_bytes)}" for need, size_bytes in row.needs.items())
    device = f"{size(row.device_bytes)} of {row.device}"
    used = f"; resident now: {size(row.used_bytes)}" if row.used_bytes else ""
    peak = f"; resident before, at most: {size(row.peak_bytes)}" if row.peak_bytes else ""
    return f"{row.role} of {row.stage}: {several}{size(row.size_bytes)} of {device}: {needs}{used}{peak}"

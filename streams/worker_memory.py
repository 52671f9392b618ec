"""`WorkerMemory`: the part of a specification that says how much memory its workers were expected to take."""

from __future__ import annotations

import msgspec

from rftd.streams.bounds import Bytes, Index


class MemoryNeed(msgspec.Struct, frozen=True, kw_only=True):
    """A thing that a worker keeps on its device."""

    what: str
    size_bytes: Bytes


class WorkerMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The memory that the workers of a stage were expected to take of one device when the experiment was accepted."""

    role: str
    stage: str
    workers: Index
    """The number of workers that share the device."""
    device: str
    device_bytes: Bytes
    needs: tuple[MemoryNeed, ...]
    """The parts of one worker's memory."""

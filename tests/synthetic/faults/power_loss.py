"""Power cuts at random writes of the embedded log, one seed after the other."""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import msgspec
from synthetic.faults.log_workload import Oracle, random_life, small_checkpoints
from synthetic.faults.shaky_disk import ShakyDisk

from rftd.ops.errors import LogError, RftdError
from rftd.streams.sqlite import schema

LIVES = 3
APPENDS = 40
LATEST_CUT = 160


class PowerCounts(msgspec.Struct, kw_only=True):
    """The outcomes of a series of power cuts."""

    seeds: int = 0
    cuts: int = 0
    acknowledged: int = 0
    refused: list[str] = []
    """Logs that did not open afterwards, with the reason."""
    broken: list[str] = []
    """Logs that opened with less than was acknowledged, or with something else."""


def cut_power(seeds: Iterable[int], *, synchronous: str = "full") -> PowerCounts:
    """Up to three power cuts for each seed, each in the log as the one before left it."""
    counts = PowerCounts()
    with small_checkpoints(), _synchronous(synchronous):
        for seed in seeds:
            with tempfile.TemporaryDirectory(prefix="rftd-") as folder:
                asyncio.run(_one(seed, Path(folder), counts))
            counts.seeds += 1
    return counts


async def _one(seed: int, root: Path, counts: PowerCounts) -> None:
    chance, oracle, folder = random.Random(seed), Oracle(), root / "0"
    for life in range(1, LIVES + 1):
        disk = ShakyDisk(cut_at=chance.randint(1, LATEST_CUT))
        with disk.in_use():
            try:
                await random_life(folder, oracle, chance, APPENDS)
            except RftdError:
                assert disk.off
        counts.cuts += disk.off
        after = root / str(life)
        disk.after_a_cut(after, chance)
        shutil.rmtree(folder)
        folder = after
        try:
            broken = await oracle.broken(folder)
        except LogError as error:
            counts.refused.append(f"seed {seed}, cut {life}: {error.what}")
            break
        if broken:
            counts.broken.append(f"seed {seed}, cut {life}: {broken[:3]}")
            break
    counts.acknowledged += len(oracle.places)


@contextmanager
def _synchronous(mode: str) -> Iterator[None]:
    """Lets the log's writer run with less than it insists on."""
    connect = schema.connect_writer

    def weaker(path: Path) -> apsw.Connection:
        connection = connect(path)
        connection.pragma("synchronous", mode)
        return connection

    setattr(schema, "connect_writer", weaker)  # noqa: B010
    try:
        yield
    finally:
        setattr(schema, "connect_writer", connect)  # noqa: B010

"""Large SQLite tables in seconds: a short run through the projector, whose rows are then copied under new ids.

Each copy is the block of steps after the one before: versions, sequences, times and offsets are shifted, ids are new,
and the counts grow with the rows. What a projector would write for a run of so many steps is equal but for such ids.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from page_postgres import BATCH, WideRun
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SFT_STEPS

from rftd.ops.clock import SystemClock
from rftd.ops.ids import derive
from rftd.storage.database.engine import open_database, sqlite_url
from rftd.storage.projector.projector import Projector
from rftd.streams.events import batch
from rftd.streams.memory import MemoryLog

BLOCK_STEPS: Final = 20
"""Steps of the run that is copied."""
_EVERY: Final = 10
"""Steps between two checkpoints, and between two evaluations."""
_FIGURES: Final = {f"figure/{number:02}": 0.5 for number in range(20)}
_IDS: Final = frozenset({"id", "group_id", "lease", "batch", "experience", "subject", "eval"})
_VERSIONS: Final = frozenset({"step", "version", "oldest_version", "newest_version"})
_SEQUENCES: Final = frozenset({"sequence", "row_start", "row_end", "row"})
_BLOCK: Final = {
    "experiences": "experiment = :run",
    "leases": "experiment = :run",
    "groups": "experiment = :run",
    "retirements": "experiment = :run",
    "batches": "experiment = :run AND stage = 1",
    "batch_items": "batch IN (SELECT id FROM batches WHERE experiment = :run AND stage = 1)",
    "steps": "experiment = :run AND stage = 1",
    "weight_versions": f"experiment = :run AND version > {SFT_STEPS}",
    "activations": f"experiment = :run AND version > {SFT_STEPS}",
    "checkpoints": f"experiment = :run AND step > {SFT_STEPS}",
    "evals": "experiment = :run",
    "eval_scores": "experiment = :run",
}
"""The rows of the block, by table."""
_WHOLE: Final = dict.fromkeys(("stages", "counts", "stage_counts", "generations"), "experiment = :run") | {
    "experiments": "id = :run"
}
"""The other rows of a run; its workers, and what they loaded, stay those of the short run."""


class BlockRun(WideRun):
    """A run of 64 experiences in each step, with retired and failed ones beside, checkpoints and evaluations."""

    def train(self) -> None:
        """One step; of the next group, one rollout fails and the others become too old."""
        super().train()
        self.explore(failed=1)
        stale = tuple(member.member.experience for member in self.waiting)
        self.waiting.clear()
        now_ns = self.recorder.clock.now_ns()
        retired = batch.ExperienceRetired(experiences=stale, reason="stale", uses=0, decided_at_ns=now_ns)
        self.recorder.write(retired, self.id, role="planner")
        if self.version % _EVERY == 0:
            self.commit(stage=1, final=False)
            self.evaluate()


class PageTables:
    """One SQLite file with a running experiment, and the log with the short run behind it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run = BlockRun(Recorder(), name="large", steps=BLOCK_STEPS, faults=False, figures=_FIGURES)
        self.log = MemoryLog()
        self.engine = open_database(sqlite_url(path))
        self.projector = Projector(self.log, self.engine, clock=SystemClock())
        self._written = 0

    async def write(self) -> None:
        """Writes the short run, without an end."""
        run = self.run
        run.begin()
        run.warm_up()
        for _ in range(BLOCK_STEPS):
            run.explore()
            run.explore()
            run.train()
        await self.append()

    async def append(self) -> None:
        """Brings new records of the run into the tables."""
        drafts = self.run.recorder.drafts
        for first in range(self._written, len(drafts), 1024):
            await self.log.append(drafts[first : first + 1024])
        self._written = len(drafts)
        await self.projector.catch_up()
        await self.projector.close()
        await self.engine.dispose()

    def lengthen(self, experiences: int) -> None:
        """Copies the block until the run has so many planned experiences."""
        blocks = max(1, round(experiences / (BLOCK_STEPS * BATCH)))
        with _writing(self.path) as file:
            copier = Copier(file, self.run.id)
            for table, condition in _BLOCK.items():
                copier.copy(table, condition, range(1, blocks))
            run = {"run": self.run.id.bytes, "blocks": blocks, "steps": blocks * BLOCK_STEPS}
            file.execute("UPDATE counts SET count = count * :blocks WHERE experiment = :run", run)
            sums = ", ".join(f"{name} = {name} * :blocks" for name in ("count", "prompt_tokens", "response_tokens"))
            file.execute(f"UPDATE stage_counts SET {sums} WHERE experiment = :run", run)
            file.execute("UPDATE experiments SET total_steps = :steps + 100 WHERE id = :run", run)
            file.execute("UPDATE stages SET total_steps = :steps + 90 WHERE experiment = :run AND stage = 1", run)

    def add_queued(self, number: int) -> None:
        """Adds queued experiments."""
        with _writing(self.path) as file:
            for n in range(number):
                copier = Copier(file, self.run.id, derive(self.run.id, "queued", n))
                copier.copy("experiments", "id = :run", [0])
                copier.copy("stages", "experiment = :run", [0])
                queued = {"name": f"queued-{n}", "later_ns": n * 10**9, "id": copier.experiment.bytes}
                file.execute(
                    """UPDATE experiments SET state = 'queued', name = :name, started_ns = NULL, started_offset = NULL,
                        submitted_ns = submitted_ns + :later_ns WHERE id = :id""",
                    queued,
                )

    def add_ended(self, number: int, steps: int) -> None:
        """Adds completed experiments of so many steps, each with the experiences of one block."""
        blocks = steps // BLOCK_STEPS
        with _writing(self.path) as file:
            for n in range(number):
                copier = Copier(file, self.run.id, derive(self.run.id, "ended", n))
                for table, condition in (_BLOCK | _WHOLE).items():
                    if table == "activations":
                        continue
                    copier.copy(table, condition, range(blocks) if table in ("steps", "batches", "evals") else [0])
                ended = {"name": f"ended-{n}", "later_ns": -n * 10**9, "id": copier.experiment.bytes, "steps": steps}
                file.execute(
                    """UPDATE experiments SET state = 'completed', name = :name, total_steps = :steps,
                        submitted_ns = submitted_ns + :later_ns WHERE id = :id""",
                    ended,
                )


class Copier:
    """Copies rows of one experiment as those of another block, or of another experiment."""

    def __init__(self, file: sqlite3.Connection, run: UUID, experiment: UUID | None = None) -> None:
        self.experiment = experiment or run
        self._file = file
        self._run = run
        (self._span_ns,) = file.execute(
            "SELECT MAX(produced_ns) - MIN(produced_ns) + 1000000000 FROM experiences WHERE experiment = ?",
            [run.bytes],
        ).fetchone()
        (self._groups,) = file.execute("SELECT COUNT(*) FROM groups WHERE experiment = ?", [run.bytes]).fetchone()
        self._offsets = 100_000

    def copy(self, table: str, condition: str, blocks: Sequence[int]) -> None:
        """Copies the rows meeting a condition once for each block."""
        cursor = self._file.execute(f"SELECT * FROM {table} WHERE {condition}", {"run": self._run.bytes})
        names = [column[0] for column in cursor.description]
        rows = cursor.fetchall()
        marks = ", ".join("?" * len(names))
        columns = list(zip(*rows, strict=True)) if rows else []
        changes = [self._change(table, name) for name in names]
        for block in blocks:
            shifted = [
                column if change is None else [None if cell is None else change(cell, block) for cell in column]
                for column, change in zip(columns, changes, strict=True)
            ]
            self._file.executemany(f"INSERT INTO {table} VALUES ({marks})", zip(*shifted, strict=True))

    def _change(self, table: str, name: str) -> Callable[[Any, int], Any] | None:
        """The change of a column from one block to another; None for none."""
        if name == "experiment" or (table == "experiments" and name == "id"):
            return lambda _cell, _block: self.experiment.bytes
        if name in _IDS:
            salt = self.experiment.bytes if self.experiment != self._run else b""
            return lambda cell, block: _digest(cell, block.to_bytes(4, "big") + salt) if block or salt else cell
        if name in _VERSIONS and table not in ("experiments", "stages"):
            return lambda cell, block: cell + block * BLOCK_STEPS
        if name in _SEQUENCES:
            return lambda cell, block: cell + block * self._groups
        if name.endswith("_ns"):
            return lambda cell, block: cell + block * self._span_ns
        if name.endswith("offset"):
            return lambda cell, block: cell + block * self._offsets
        return None


def _digest(id: bytes, salt: bytes) -> bytes:
    return hashlib.blake2b(id, digest_size=16, salt=salt[:4], person=salt[4:20]).digest()


@contextmanager
def _writing(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that writes without a journal; indices are dropped, and made again at the end."""
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        for pragma in ("journal_mode=OFF", "synchronous=OFF", "cache_size=-1000000"):
            file.execute(f"PRAGMA {pragma}")
        sql = "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
        indices = file.execute(sql).fetchall()
        file.execute("BEGIN")
        for name, _ in indices:
            file.execute(f"DROP INDEX {name}")
        yield file
        for _, text in indices:
            file.execute(text)
        file.execute("COMMIT")
        file.execute("PRAGMA journal_mode=WAL")

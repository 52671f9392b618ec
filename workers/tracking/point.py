"""`Point`, the data of trackers: figures of a step or evaluation, a table of samples, or a remark on the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

import msgspec

EXPLORER: Final = "explorer"
TRAINER: Final = "trainer"
ROLES: Final = (EXPLORER, TRAINER)
"""The configuration guide's two runs: each point belongs to one of them."""


COLUMNS: Final = ("row", "prompt", "answer", "reward", "tokens", "finish", "truth")


class Sample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A row of a table: one rollout of a training step, or the answer to one evaluation row."""

    prompt: str
    answer: str
    reward: float
    tokens: int
    finish: str
    truth: str = ""
    row: int | None = None
    """Number of the evaluation row; None for a rollout."""

    def cells(self) -> list[Any]:
        """Returns the values of the row in the order of `COLUMNS`."""
        return [getattr(self, column) for column in COLUMNS]


class SampleSource(msgspec.Struct, frozen=True, array_like=True):
    """Where in the log a table's rows are."""

    places: tuple[tuple[int, int], ...]
    """Partition and offset of each rollout; for an evaluation, the first possible offsets of its scores."""
    evaluation: UUID | None = None
    rows: int = 0
    """Number of evaluation rows."""
    score: float = 0.0


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """Figures, a table or a remark about one moment of an experiment."""

    role: str
    number: int
    """Number of the point in the experiment, from 0: equal each time the log is read."""
    row: int
    """Number among the points with figures or tables; -1 for a remark. Determined by the spine alone."""
    step: int
    """The weight version described by the point."""
    time_ns: int
    figures: dict[str, float] = {}
    remark: str = ""
    """The text of an annotation, such as a pause; empty for figures."""
    table: str = ""
    """The name of a table, such as `samples/rollouts`; empty if the point is no table."""
    samples: tuple[Sample, ...] = ()
    """Rows of the table; empty if not yet read, or no longer available."""
    source: SampleSource | None = None
    """Log positions of the table's rows, until they are read; else None."""


class TrackedRun(msgspec.Struct, frozen=True, kw_only=True):
    """The tracked experiment, as described to services: names, configuration and digest."""

    experiment: str
    project: str
    group: str
    name: str
    job_dir: str
    config: Mapping[str, Any]
    """The experiment file as submitted, without secrets."""
    digest: str
    """sha256 of that configuration."""
    single_run: bool = False

    @property
    def short_id(self) -> str:
        """The first digits of the experiment's id, which make its file names unique in a shared folder."""
        return self.experiment[:8]

    @property
    def roles(self) -> tuple[str, ...]:
        """The names of a tracker's runs: `explorer` and `trainer`, or one empty name for a single run."""
        return ("",) if self.single_run else ROLES

    def run_of(self, point: Point) -> str:
        """Returns the name of the run that shows a point: its role, or the empty name for a single run."""
        return "" if self.single_run else point.role

    def title(self, role: str) -> str:
        """Returns the name of a run: `NAME_explorer`, `NAME_trainer`, or `NAME` for a single run."""
        return f"{self.name}_{role}" if role else self.name

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
    """A row of a table: a rollout of a training step, or an answer to a held-out row."""

    prompt: str
    answer: str
    reward: float
    tokens: int
    finish: str
    truth: str = ""
    row: int | None = None
    """The held-out row."""

    def cells(self) -> list[Any]:
        """Returns the values of the row in the order of `COLUMNS`."""
        return [getattr(self, column) for column in COLUMNS]


class SampleSource(msgspec.Struct, frozen=True, array_like=True):
    """The log positions of a table's rows."""

    places: tuple[tuple[int, int], ...]
    """Partition and offset of each rollout; for an evaluation, the first possible offsets of its scores."""
    evaluation: UUID | None = None
    rows: int = 0
    """The number of held-out rows."""
    score: float = 0.0


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """Figures, or a remark, of a moment in a run."""

    role: str
    number: int
    """The number among all points of the experiment, from 0: equal in every reading of the log."""
    row: int
    """The number among the points with figures; -1 for a remark. Determined by the spine alone."""
    step: int
    """The weight version described by the point."""
    time_ns: int
    figures: dict[str, float] = {}
    remark: str = ""
    """The text of an annotation, such as a pause; empty for figures."""
    table: str = ""
    """The name of a table, such as `samples/rollouts`; empty if the point is no table."""
    samples: tuple[Sample, ...] = ()
    """The rows of the table; empty if no longer available."""
    source: SampleSource | None = None
    """The log positions of the rows, until they are read."""


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
        """The first digits of the experiment's id, which distinguish its files from another experiment's in the same
        folder.
        """
        return self.experiment[:8]

    @property
    def roles(self) -> tuple[str, ...]:
        """The runs maintained by a tracker: the guide's two, or one under an empty name."""
        return ("",) if self.single_run else ROLES

    def run_of(self, point: Point) -> str:
        """Returns the run of a point: its role, or the single run."""
        return "" if self.single_run else point.role

    def title(self, role: str) -> str:
        """Returns the name of a run: `NAME_explorer`, `NAME_trainer`, or `NAME` for a single run."""
        return f"{self.name}_{role}" if role else self.name

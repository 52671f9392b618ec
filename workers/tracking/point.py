"""`Point` is what trackers show: figures of a step or evaluation, a table of its samples, or a remark on the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

import msgspec

EXPLORER: Final = "explorer"
TRAINER: Final = "trainer"
ROLES: Final = (EXPLORER, TRAINER)
"""The guide's two runs: each point is of one of them."""


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
        """The values in the order of `COLUMNS`."""
        return [getattr(self, column) for column in COLUMNS]


class SampleSource(msgspec.Struct, frozen=True, array_like=True):
    """Where the rows of a table are found."""

    places: tuple[tuple[int, int], ...]
    """Partition and offset of each rollout; of an evaluation the offsets from which its scores can lie."""
    evaluation: UUID | None = None
    rows: int = 0
    """The number of held-out rows."""
    score: float = 0.0


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """Figures, or a remark, of one moment of a run."""

    role: str
    number: int
    """The place among all points of the experiment, from 0 on: the same whenever the log is read again."""
    row: int
    """The place among the points with figures; -1 for a remark. It follows from the spine alone."""
    step: int
    """The weight version that it is about."""
    time_ns: int
    figures: dict[str, float] = {}
    remark: str = ""
    """The text of an annotation, such as a pause; empty for figures."""
    table: str = ""
    """The name of a table, such as `samples/rollouts`; empty of a point that is none."""
    samples: tuple[Sample, ...] = ()
    """The rows of the table; empty if they are not there any more."""
    source: SampleSource | None = None
    """Where the rows are to be read from, until they are."""


class TrackedRun(msgspec.Struct, frozen=True, kw_only=True):
    """The experiment that is tracked."""

    experiment: str
    project: str
    group: str
    name: str
    job_dir: str
    config: Mapping[str, Any]
    """The experiment file as it was submitted, without secrets."""
    digest: str
    """sha256 of that configuration."""
    single_run: bool = False

    @property
    def short_id(self) -> str:
        """The first digits of the experiment's id, by which its files are told from another's in the same folder."""
        return self.experiment[:8]

    @property
    def roles(self) -> tuple[str, ...]:
        """The runs that a tracker keeps: the guide's two, or one under an empty name."""
        return ("",) if self.single_run else ROLES

    def run_of(self, point: Point) -> str:
        """The run that a point belongs to."""
        return "" if self.single_run else point.role

    def title(self, role: str) -> str:
        """The name of a run: `NAME_explorer`, `NAME_trainer`, or `NAME` where there is one."""
        return f"{self.name}_{role}" if role else self.name

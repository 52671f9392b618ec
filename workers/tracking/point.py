"""`Point`, a piece of tracker data: figures of a step or evaluation, a table of samples, or a remark on the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

import msgspec

EXPLORER: Final = "explorer"
"""Role of points about rollouts and evaluations."""
TRAINER: Final = "trainer"
"""Role of points about training steps, and of remarks on the run."""
ROLES: Final = (EXPLORER, TRAINER)
"""Roles of points: a tracker has a run for each, as in Trinity-RFT."""


COLUMNS: Final = ("row", "prompt", "answer", "reward", "tokens", "finish", "truth")
"""Columns of sample tables: fields of `Sample` in order."""


class Sample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A row of a table: one rollout of a training step, or the answer to one evaluation row."""

    prompt: str
    """End of the prompt's text."""
    answer: str
    """Beginning of the answer's text."""
    reward: float
    """Reward of the answer."""
    tokens: int
    """Number of tokens of the answer."""
    finish: str
    """Reason for the answer's end, such as `stop` or `length`."""
    truth: str = ""
    """Reference answer of the evaluation row; empty for a rollout."""
    row: int | None = None
    """Number of the evaluation row; None for a rollout."""

    def cells(self) -> list[Any]:
        """Returns the values of the row in the order of `COLUMNS`."""
        return [getattr(self, column) for column in COLUMNS]


class SampleSource(msgspec.Struct, frozen=True, array_like=True):
    """Log positions of a table's rows."""

    places: tuple[tuple[int, int], ...]
    """Partition and offset of each rollout; for an evaluation, the first possible offsets of its scores."""
    evaluation: UUID | None = None
    """Id of the evaluation; None for rollouts of a step."""
    rows: int = 0
    """Number of evaluation rows."""
    score: float = 0.0
    """Recorded mean score of the evaluation, to check the scores read."""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """Figures, a table or a remark about one moment of an experiment."""

    role: str
    """Run of the point: `explorer` or `trainer`."""
    number: int
    """Number of the point in the experiment, from 0: equal each time the log is read."""
    row: int
    """Number of the point among those with figures or tables; -1 for a remark. Determined by the spine alone."""
    step: int
    """Weight version described by the point."""
    time_ns: int
    """Time of the event described."""
    figures: dict[str, float] = {}
    """Figures by name; empty for tables and remarks."""
    remark: str = ""
    """Text of an annotation, such as a pause; empty for figures."""
    table: str = ""
    """Name of a table, such as `samples/rollouts`; empty for other points."""
    samples: tuple[Sample, ...] = ()
    """Rows of the table; empty if not yet read, or no longer available."""
    source: SampleSource | None = None
    """Log positions of the table's rows until the rows are read; afterwards None."""


class TrackedRun(msgspec.Struct, frozen=True, kw_only=True):
    """Description of the tracked experiment for services: names, configuration and digest."""

    experiment: str
    """Id of the experiment."""
    project: str
    """Name of the project."""
    group: str
    """Name of the group of runs."""
    name: str
    """Name of the experiment."""
    job_dir: str
    """Folder of the job."""
    config: Mapping[str, Any]
    """The experiment file as submitted, without secrets."""
    digest: str
    """sha256 of `config`."""
    single_run: bool = False
    """True if all points go to one run instead of one per role."""

    @property
    def short_id(self) -> str:
        """First digits of the experiment's id, which make its file names unique in a shared folder."""
        return self.experiment[:8]

    @property
    def roles(self) -> tuple[str, ...]:
        """Names of a tracker's runs: `explorer` and `trainer`, or one empty name for a single run."""
        return ("",) if self.single_run else ROLES

    def run_of(self, point: Point) -> str:
        """Returns the name of the run that shows a point: its role, or the empty name for a single run."""
        return "" if self.single_run else point.role

    def title(self, role: str) -> str:
        """Returns the name of a run: `NAME_explorer`, `NAME_trainer`, or `NAME` for a single run."""
        return f"{self.name}_{role}" if role else self.name

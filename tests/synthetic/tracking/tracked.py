"""A tracked run: its records arrive in portions, its follower dies at named points, and each kind is read back."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun
from synthetic.tracking.event_files import scalars_of

from rftd.ops.clock import ManualClock
from rftd.ops.logs import logger
from rftd.storage.database.engine import open_database
from rftd.storage.files.artifacts import ArtifactStore
from rftd.storage.projector.projector import Projector
from rftd.storage.queries.steps import list_evals, list_steps
from rftd.streams.log.log import EventLog
from rftd.streams.spec.stage_parts import TrackerSpec
from rftd.workers.tracking.process import run_tracker

PORTION: Final = 40
"""Records that arrive at once."""
_ROLLOUTS: Final = ("critic/rewards/", "prompt_length/", "response_length/", "reward/")
FILES: Final = ("jsonl", "tensorboard")
"""The kinds of trackers that keep every figure in files of their own."""


class Shown(NamedTuple):
    """One figure, as a tracker shows it."""

    run: str
    step: int
    name: str
    value: str
    """As float32 where the kind keeps no more, written so that no number and itself are equal."""


class Killed(BaseException):
    """The death of a follower's process: nothing of ours catches it."""


class Deaths:
    """Raises `Killed` at the n-th passage of any point, for each n once."""

    def __init__(self, passages: Iterable[int]) -> None:
        self._due = sorted(passages)
        self._passed = 0
        self.count = 0

    def point(self, name: str) -> None:
        """Passes a point, or dies there."""
        self._passed += 1
        if self._due and self._passed >= self._due[0]:
            self._due.pop(0)
            self.count += 1
            raise Killed(name)


def written(folder: Path) -> SyntheticRun:
    """A run of two SFT and twelve RFT steps, with figures of rollouts and the things that go wrong."""
    figures = {"critic/rewards/mean": 0.5, "response_length/mean": 7.0}
    return SyntheticRun(Recorder(), job_dir=str(folder), steps=12, figures=figures).write()


def answered(folder: Path) -> SyntheticRun:
    """Such a run without figures of rollouts, whose evaluations keep the texts of their answers."""
    store = ArtifactStore(folder / "artifacts")
    return SyntheticRun(Recorder(), job_dir=str(folder), steps=12, artifacts=store).write()


async def expected(kind: str, run: SyntheticRun, log: EventLog, *, single_run: bool = False) -> list[Shown]:
    """The figures of `rftd steps` and of the evaluations, as this kind keeps them; a single run has no role."""
    engine = open_database("sqlite:///:memory:")
    await Projector(log, engine, clock=ManualClock()).catch_up()
    shown: list[Shown] = []
    async with engine.connect() as connection:
        for row in await list_steps(connection, run.id):
            for name, value in row.metrics.items():
                shown.append(as_shown(kind, "trainer", row.step, name, float("nan") if value is None else value))
            for name, value in of_rollouts(row.metrics):
                shown.append(as_shown(kind, "explorer", row.step, name, value))
            shown.append(as_shown(kind, "trainer", row.step, "perf/step_s", row.duration_s))
            shown.append(as_shown(kind, "trainer", row.step, "perf/tokens", row.tokens))
            shown.append(as_shown(kind, "trainer", row.step, "perf/tokens_per_s", row.tokens / row.duration_s))
        for score in await list_evals(connection, run.id):
            figures = {**score.metrics, "score": score.score, "rows": score.rows}
            for name, value in figures.items():
                assert value is not None
                shown.append(as_shown(kind, "explorer", score.version, f"eval/{score.taskset}/{name}", value))
    await engine.dispose()
    if single_run:
        shown = list({figure._replace(run="") for figure in shown})
    return sorted(shown, key=lambda figure: (figure.run, figure.step, figure.name))


async def follow(
    log: EventLog,
    run: SyntheticRun,
    tracker: TrackerSpec,
    point: Callable[[str], None] = lambda name: None,
    *,
    clock: ManualClock | None = None,
) -> int:
    """Follows the run up to the log's head, in a process that may die at a point; returns the number of points."""
    return await run_tracker(
        log,
        run.id,
        tracker,
        stop=asyncio.Event(),
        clock=clock or ManualClock(),
        logger=logger(),
        environ={},
        until_head=True,
        point=point,
    )


async def follow_and_die(
    log: EventLog, run: SyntheticRun, tracker: TrackerSpec, deaths: Deaths, *, portion: int = PORTION
) -> None:
    """Follows a run whose records arrive in portions, in one process after another."""
    for first in range(0, len(run.recorder.drafts), portion):
        await log.append(run.recorder.drafts[first : first + portion])
        while True:
            try:
                await follow(log, run, tracker, deaths.point)
            except Killed:
                continue
            break


def of_rollouts(metrics: Mapping[str, float | None]) -> Iterator[tuple[str, float]]:
    """The figures of a step that its explorers' run shows."""
    for name, value in metrics.items():
        if value is not None and name.startswith(_ROLLOUTS):
            yield name, value
            if name.startswith("critic/rewards/"):
                yield name.replace("critic/rewards/", "rollout/reward/"), value


def shown_by(kind: str, folder: Path) -> list[Shown]:
    """Every figure that a tracker has kept below the folder, in order, run by run."""
    return sorted(_READERS[kind](folder), key=lambda shown: (shown.run, shown.step, shown.name))


def as_shown(kind: str, run: str, step: int, name: str, value: float) -> Shown:
    """A figure as this kind keeps it."""
    if kind == "tensorboard":
        (value,) = struct.unpack("<f", struct.pack("<f", value))
    if kind == "mlflow":
        name = name.replace("@", "_at_")
    return Shown(run, step, name, repr(float(value)))


def _of_lines(folder: Path) -> list[Shown]:
    lines = [json.loads(line) for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]
    return [
        as_shown("jsonl", line["run"], line["step"], name, float("nan") if value is None else value)
        for line in lines
        for name, value in line.get("figures", {}).items()
    ]


def _of_event_files(folder: Path) -> list[Shown]:
    return [
        as_shown("tensorboard", path.parent.name, scalar.step, scalar.tag, scalar.value)
        for path in folder.rglob("events.out.tfevents.*")
        for scalar in scalars_of(path)
    ]


_READERS: Final[dict[str, Callable[[Path], list[Shown]]]] = {"jsonl": _of_lines, "tensorboard": _of_event_files}

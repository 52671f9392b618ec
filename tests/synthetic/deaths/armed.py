"""Runs in which every armed fault point kills its process once, and the proof of which points were passed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from synthetic.daemon.scene import EXPERIMENT, Scene
from synthetic.deaths.killing import trained

from rftd.ops.errors import UnreachableError
from rftd.ops.faults import POINTS

SERVING = ("log.", "projector.", "submission.", "planner.", "dispatcher.", "controller.", "fleet.")
BY_REFERENCE = ("artifact.before_rename", "artifact.after_rename")
"""Passed only where token arrays are too large for an event."""
REPLACING = ("checkpoint.before_exchange",)
"""Passed only where a folder of that name is left from an attempt before."""


class Armed(msgspec.Struct, kw_only=True):
    """The result of a run with armed points."""

    struck: list[str]
    """Items that killed their process."""
    spared: list[str]
    """Items that were armed and never due."""
    passed: set[str]
    """Every point that some process passed."""
    broken: list[str]
    weights: list[str]
    """sha256 of the weights after each step; empty where none was recorded."""


def armed_run(folder: Path, items: Sequence[tuple[str, int]], *overrides: str, text: str = EXPERIMENT) -> Armed:
    """One experiment in which each (point, passage) kills its process once; it must complete and keep its promises."""
    once, hits = folder / "once", folder / "hits"
    once.mkdir(parents=True)
    hits.touch()
    files = {f"{name}@{passage}": once / f"{name}.{passage}" for name, passage in items}
    armed = ",".join(f"{name}=kill@{passage}!{files[f'{name}@{passage}']}" for name, passage in items)
    scene = Scene(folder, environ={"RFTD_FAULTS": armed, "RFTD_FAULTS_HITS": str(hits)})
    try:
        with suppress(UnreachableError):  # it died while it started: it is started again by whoever asks it
            scene.host.__enter__()
        page = scene.until_ended(scene.submit_through(text, *overrides), timeout_s=400.0)
    finally:
        scene.host.stop()
    report = scene.verified()
    summary, books = page.experiment.summary, page.experiment.books
    broken = [str(finding) for finding in report.findings]
    if summary.state != "completed" or summary.step != summary.total_steps or books.balance:
        broken.append(f"{summary} {books}")
    return Armed(
        struck=[item for item, file in files.items() if file.exists()],
        spared=[item for item, file in files.items() if not file.exists()],
        passed=set(hits.read_text().split()),
        broken=broken,
        weights=trained(scene),
    )


def points(*prefixes: str, without: Iterable[str] = ()) -> list[str]:
    """The names of all points that begin so."""
    return sorted(name for name in POINTS if name.startswith(prefixes) and name not in set(without))

"""The cost of trackers beside a run. Run: python -P tests/bench/tracker_cost.py

Pairs of runs of fake engines at about ten steps a second, one of each pair with the trackers `tensorboard` and `jsonl`,
in turn. `core_share` is the processor time of one tracker's process over the time of the run, without its start;
`speed_ratio` the steps a second beside trackers over those without, the median of the pairs;
`first_figure_s` the longest time from a submission to the first figure in the file of `jsonl`.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

sys.path.extend(str(Path(__file__).parents[above]) for above in (0, 1))

import psutil
from figures import median_of, read_options, tell
from synthetic.daemon.scene import EXPERIMENT, Scene
from synthetic.tracking.live import trackers_of
from synthetic.until import poll

STEPS = 300
FIRST = 60
"""The step from which time is measured: everything has started by then."""
FAST = (
    *("stages=[]", f"buffer.total_steps={STEPS}", "explorer.eval_interval=100", "trainer.save_interval=100"),
    *("trainer.engine_args.step_s=0.1", "explorer.rollout_model.extra_engine_args.latency_s=0.01"),
)
TRACKED = "monitor={monitor_type: tensorboard, also: [jsonl]}"


class Run(NamedTuple):
    """One run."""

    steps_per_s: float
    core_shares: list[float]
    first_figure_s: float
    """From the submission to the first figure in the tracker's file; 0 without one."""


def measured(folder: Path, *, tracked: bool) -> Run:
    """A run, with trackers or without."""
    scene = Scene(folder)
    with scene.host:
        submitted_s = time.monotonic()
        name = scene.submit(EXPERIMENT, *FAST, *((TRACKED,) if tracked else ()))
        first_figure_s = 0.0
        if tracked:
            lines = folder / "checkpoints" / "crash" / "sums" / "monitor" / "jsonl"
            poll(lambda: any('"figures"' in path.read_text() for path in lines.glob("*.jsonl")))
            first_figure_s = time.monotonic() - submitted_s
        id = scene.until_step(name, FIRST).experiment.summary.id
        processes = trackers_of(id)
        if len(processes) != 2 * tracked:
            raise SystemExit(f"{len(processes)} trackers follow the run")
        before = [cpu_s(process) for process in processes]
        first_s = time.monotonic()
        begun = scene.until_step(name, FIRST).experiment.summary.step
        page = scene.until_step(name, STEPS - 10)
        passed_s = time.monotonic() - first_s
        shares = [(cpu_s(process) - used) / passed_s for process, used in zip(processes, before, strict=True)]
        scene.until_ended(name)
    return Run((page.experiment.summary.step - begun) / passed_s, shares, first_figure_s)


def cpu_s(process: psutil.Process) -> float:
    """The processor time of a process so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


def main() -> None:
    """Prints the figures as JSON."""
    pairs = read_options(__doc__, pairs=3).pairs
    with tempfile.TemporaryDirectory() as root:
        runs: list[tuple[Run, Run]] = []
        for number in range(pairs):
            folders = [Path(root, f"{number}-{kind}") for kind in ("without", "tracked")]
            for folder in folders:
                folder.mkdir()
            without = measured(folders[0], tracked=False)
            runs.append((without, measured(folders[1], tracked=True)))
    shares = [share for _, tracked in runs for share in tracked.core_shares]
    if not shares or min(shares) <= 0:
        raise SystemExit("no tracker used any processor time: nothing was measured")
    ratios = [round(tracked.steps_per_s / without.steps_per_s, 3) for without, tracked in runs]
    tell(
        {
            "pairs": pairs,
            "steps_per_s": median_of((tracked.steps_per_s for _, tracked in runs), 2),
            "core_share": median_of(shares, 4),
            "core_share_most": round(max(shares), 4),
            "first_figure_s": round(max(tracked.first_figure_s for _, tracked in runs), 2),
            "speed_ratio": median_of(ratios, 3),
            "speed_ratios": ratios,
        }
    )


if __name__ == "__main__":
    main()

"""False alarms of the learning signal: `rftd demo` with many seeds, which all learn, so no signal is lost in any.

Run: python -P tests/bench/signal_alarms.py [--seeds 1 2 3 ...] [--grpo-steps N, of a shorter demo, and --bar of it]
A batch in which every answer is right is told as `solved`: it is counted by itself, and no alarm.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parent))

from figures import read_options, tell

from rftd.daemon.demo.outcome import DemoOutcome
from rftd.daemon.serve.data_folder import DataFolder
from rftd.daemon.serve.log_source import log_to_read
from rftd.ops.clock import SystemClock
from rftd.ops.ids import SystemIds
from rftd.streams.events.experiment import SignalLost
from rftd.streams.folds.signal import SOLVED
from rftd.streams.log import topics
from rftd.streams.log.codec import decode


async def losses(folder: Path) -> list[SignalLost]:
    """Every loss of the signal in the log of a daemon that has ended."""
    clock = SystemClock()
    found: list[SignalLost] = []
    async with log_to_read(DataFolder(folder), None, clock=clock, ids=SystemIds(clock)) as log:
        for partition, head in (await log.heads()).items():
            offset = 0
            while partition.stream == topics.EXPERIMENTS and offset < head.next_offset:
                records = await log.read(partition, offset)
                offset = records[-1].offset + 1
                found += [event for record in records if isinstance(event := decode(record).event, SignalLost)]
    return found


def run(seed: int, folder: Path, *, grpo_steps: int, bar: float) -> dict[str, float]:
    """One demo; its figures."""
    command = [sys.executable, "-P", "-m", "rftd.daemon", "demo", "--seed", str(seed), "--folder", str(folder)]
    command += ["--bar", str(bar)]
    command += ["-s", f"buffer.total_steps={grpo_steps}"] if grpo_steps else []
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    outcome = msgspec.json.decode((folder / "outcome.json").read_bytes(), type=DemoOutcome)
    causes = Counter(each.cause for each in asyncio.run(losses(folder / "data")))
    for cause, count in causes.items():
        print(f"seed {seed}: {cause} {count} times", file=sys.stderr, flush=True)
    return {
        "seed": seed,
        "exit_status": done.returncode,
        "steps": outcome.steps,
        "after_grpo": round(outcome.after_grpo, 3),
        "told_solved": causes.pop(SOLVED, 0),
        "false_alarms": causes.total(),
    }


def main() -> None:
    given = read_options(
        __doc__,
        seeds=list(range(1, 21)),
        grpo_steps=(0, "0: as many as the demo has"),
        bar=(0.4, "the rise of held-out accuracy that each has to make"),
    )
    runs = []
    for seed in given.seeds:
        with tempfile.TemporaryDirectory() as folder:
            runs.append(run(seed, Path(folder) / "demo", grpo_steps=given.grpo_steps, bar=given.bar))
            print(msgspec.json.encode(runs[-1]).decode(), file=sys.stderr, flush=True)
    alarms = sum(each["false_alarms"] for each in runs)
    tell({"runs": runs, "seeds": len(runs), "false_alarms": alarms})
    if alarms or any(each["exit_status"] for each in runs):
        sys.exit("a run that learns was said not to, or did not learn")


if __name__ == "__main__":
    main()

"""The demo's GRPO stage, asynchronous against our own synchronous mode; prints JSON.

python -P tests/bench/demo_async.py [--seeds 1 2 3] [--steps 300] [--sft-steps 600]

`rftd demo` as it is, and with `sync_style: fixed`, offset 0, where explorers wait for the trainer and the trainer for
them. Both from the log: seconds from the first lease of the stage, which is the first rollout request, to the rollout
with which the mean reward of the last 256 reached 0.9. The ratio is the median over the seeds, each paired.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
from collections import deque
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from figures import note, read_options, tell

from rftd.daemon.serve.data_folder import DataFolder
from rftd.streams.events.batch import BatchPlanned
from rftd.streams.events.experience import ExperienceProduced
from rftd.streams.events.task import TaskLeased
from rftd.streams.log import topics
from rftd.streams.log.codec import decode
from rftd.streams.sqlite.view import SqliteView

BAR = 0.7
TARGET, ROLLOUTS, STAGE = 0.9, 256, 1
SYNCHRONOUS = (
    "synchronizer.sync_style=fixed",
    "synchronizer.sync_offset=0",
    "algorithm.sample_strategy_args={max_staleness: 0}",
)


def demo(seed: int, folder: Path, *overrides: str) -> dict[str, float]:
    """One demo; when it reached the reward."""
    command = [sys.executable, "-P", "-m", "rftd.daemon", "demo", "--seed", str(seed), "--folder", str(folder)]
    for override in overrides:
        command += ["-s", override]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=900)
    return asyncio.run(reached(DataFolder(folder / "data").log))


async def reached(log: Path) -> dict[str, float]:
    """The figures of the run, from its records."""
    leased_ns: list[int] = []
    rollouts: list[tuple[int, float]] = []
    staleness: list[int] = []
    view = await SqliteView.open(log)
    try:
        for partition in await view.heads():
            if partition.stream not in (topics.TASKS, topics.EXPERIENCES, topics.EXPERIMENTS):
                continue
            position = 0
            while records := await view.read(partition, position):
                position = records[-1].offset + 1
                for decoded in map(decode, records):
                    match decoded.event:
                        case TaskLeased(stage=stage) if stage == STAGE:
                            leased_ns.append(decoded.head.time_ns)
                        case ExperienceProduced(stage=stage, reward=reward) if stage == STAGE:
                            rollouts.append((decoded.head.time_ns, reward))
                        case BatchPlanned(stage=stage, experiences=items) if stage == STAGE:
                            staleness += [item.staleness_versions for item in items]
    finally:
        await view.close()
    begun_ns, recent = min(leased_ns), deque[float](maxlen=ROLLOUTS)
    number, time_ns = -1, begun_ns - 10**9
    for count, (at_ns, reward) in enumerate(sorted(rollouts), start=1):
        recent.append(reward)
        if len(recent) == ROLLOUTS and sum(recent) / ROLLOUTS >= TARGET:
            number, time_ns = count, at_ns
            break
    return {
        "reached_s": round((time_ns - begun_ns) / 1e9, 2),
        "rollouts": number,
        "stage_s": round((max(rollouts)[0] - begun_ns) / 1e9, 2),
        "staleness_mean_versions": round(statistics.mean(staleness), 2),
        "staleness_max_versions": max(staleness),
    }


def main() -> None:
    chosen = read_options(
        __doc__, seeds=[1, 2, 3], steps=300, sft_steps=(600, "fewer: for a try, that cannot reach the reward")
    )
    pairs = []
    steps = (f"buffer.total_steps={chosen.steps}", f"stages[0].buffer.total_steps={chosen.sft_steps}")
    with tempfile.TemporaryDirectory() as folder:
        for seed in chosen.seeds:
            asynchronous = demo(seed, Path(folder) / f"async{seed}", *steps)
            synchronous = demo(seed, Path(folder) / f"sync{seed}", *steps, *SYNCHRONOUS)
            pairs.append({"seed": seed, "asynchronous": asynchronous, "synchronous": synchronous})
            note(pairs[-1])
    ratios = [
        round(pair["asynchronous"]["reached_s"] / pair["synchronous"]["reached_s"], 3)  # type: ignore[index]
        for pair in pairs
        if min(pair[mode]["rollouts"] for mode in ("asynchronous", "synchronous")) > 0  # type: ignore[index]
    ]
    ratio = statistics.median(ratios) if ratios else None
    tell({"ratio": ratio, "bar": BAR, "ratios": ratios, "pairs": pairs})


if __name__ == "__main__":
    main()

"""The demo on vLLM beside the demo on torch with the same model: what was learned, what it cost, what `verify` finds.

Runs in the environment of the CPU engines. Wall times are of the machine as it is, processor seconds of the demo's
processes alone. A step is on policy if no rollout of its batch is of older weights than those that it changes. A run
that ended is a line of the record, and a later call goes on from there.

    build/engines-cpu/bin/python -P tests/bench/vllm_demo.py [--seeds 1 2 3] [--engines torch vllm]
        [--record demos.jsonl] [--seconds 7200] [--set buffer.total_steps=3]
"""

from __future__ import annotations

import asyncio
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import msgspec
import psutil

sys.path.insert(0, str(Path(__file__).parent))

from demo_kills import checked
from figures import read_options, tell

from rftd.daemon.demo.demo import HEAD_SIZES
from rftd.daemon.demo.outcome import DemoOutcome
from rftd.daemon.serve.data_folder import DataFolder
from rftd.streams.events.batch import BatchPlanned
from rftd.streams.events.step import StepCompleted
from rftd.streams.log import topics
from rftd.streams.log.codec import decode
from rftd.streams.sqlite.view import SqliteView
from rftd.workers.models.tiny_model import make_tiny_model

POLL_INTERVAL_S = 2.0
LONGEST_S = 1800.0
ENGINE = "VLLM::EngineCore"
LEARNED_LESS = 0.05
"""The most by which the mean of held-out accuracies may be below torch's."""
MISMATCH_NATS = 1e-4
"""The largest difference of a log-probability from the trainer's in a step on policy."""
SLOWER = 4.0
"""The most times torch's wall time that GRPO may take, engines having started."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One demo, as a line of the record."""

    engine: str
    seed: int
    exit_status: int
    after_sft: float
    after_grpo: float
    wall_s: float
    grpo_s: float
    processor_s: dict[str, float]
    """Of each part of the demo."""
    engines: int
    on_policy_steps: int
    largest_mismatch_nats: float
    findings: int
    load: float


class ProcessTimes:
    """The processor seconds of a process and all that it started, as last seen of each."""

    def __init__(self, pid: int) -> None:
        self._first = psutil.Process(pid)
        self._seconds: dict[tuple[int, float], tuple[str, float]] = {}

    def look(self) -> None:
        """Reads them; what ends until the next look is missed by that much."""
        try:
            living = [self._first, *self._first.children(recursive=True)]
        except psutil.Error:
            return
        for each in living:
            try:
                times = each.cpu_times()
                command = each.cmdline()
                if command:  # one that ended has none
                    self._seconds[each.pid, each.create_time()] = (part_of(command), times.user + times.system)
            except psutil.Error:
                continue

    def by_part(self) -> dict[str, float]:
        found: defaultdict[str, float] = defaultdict(float)
        for part, seconds in self._seconds.values():
            found[part] += seconds
        # Whatever is met in passing took less than a tenth of a second, and is no figure.
        return {part: round(seconds, 1) for part, seconds in sorted(found.items()) if seconds >= 0.05}

    def count(self, part: str) -> int:
        """The number of such processes that there were."""
        return sum(each == part for each, _ in self._seconds.values())


def part_of(command: list[str]) -> str:
    """The part of the demo that a process is, by its command."""
    line = " ".join(command)
    names = {ENGINE: "engine_core", "VLLM::": "engine_worker", "explorer": "explorer", "trainer": "trainer"}
    names |= {" demo ": "demo", " serve": "daemon"}
    return next((part for sign, part in names.items() if sign in line), "other")


def run(engine: str, seed: int, folder: Path, settings: list[str]) -> Run:
    """One demo; `settings` are of its file."""
    began_s = time.monotonic()
    command = [sys.executable, "-P", "-m", "rftd.daemon", "demo", "--engine", engine]
    # Its own has heads of 16: both learn on the model that is made for vLLM.
    model = make_tiny_model(folder.with_name("model"), seed=seed, head_size=HEAD_SIZES["vllm"])
    command += ["--seed", str(seed), "--folder", str(folder), "-s", f"model.model_path={model}"]
    command += [word for each in settings for word in ("-s", each)]
    demo = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    times = ProcessTimes(demo.pid)
    while demo.poll() is None and time.monotonic() - began_s < LONGEST_S:
        times.look()
        time.sleep(POLL_INTERVAL_S)
    if demo.poll() is None:
        demo.terminate()
    status = demo.wait(60)
    outcome = msgspec.json.decode((folder / "outcome.json").read_bytes(), type=DemoOutcome)
    report = asyncio.run(checked(DataFolder(folder / "data")))
    on_policy, mismatch = asyncio.run(mismatches(DataFolder(folder / "data").log))
    return Run(
        engine=engine,
        seed=seed,
        exit_status=status,
        after_sft=round(outcome.after_sft, 3),
        after_grpo=round(outcome.after_grpo, 3),
        wall_s=round(time.monotonic() - began_s, 1),
        grpo_s=round(outcome.grpo_s, 1),
        processor_s=times.by_part(),
        engines=times.count("engine_core") if engine == "vllm" else 1,
        on_policy_steps=on_policy,
        largest_mismatch_nats=mismatch,
        findings=len(report.findings),
        load=os.getloadavg()[1],
    )


async def mismatches(log: Path) -> tuple[int, float]:
    """The number of GRPO steps on policy, and the largest difference of a log-probability in one of them."""
    planned: dict[int, BatchPlanned] = {}
    done: dict[int, StepCompleted] = {}
    view = await SqliteView.open(log)
    try:
        for partition in sorted(each for each in await view.heads() if each.stream == topics.EXPERIMENTS):
            position = 0
            while records := await view.read(partition, position):
                position = records[-1].offset + 1
                for event in (decode(record).event for record in records):
                    if isinstance(event, BatchPlanned):
                        planned[event.step] = event
                    elif isinstance(event, StepCompleted):
                        done[event.step] = event
    finally:
        await view.close()
    fresh = [
        step
        for step, plan in planned.items()
        if plan.experiences and step in done and not any(each.staleness_versions for each in plan.experiences)
    ]
    ratios = [done[step].metrics[f"mismatch/ratio/{end}"] for step in fresh for end in ("min", "max")]
    return len(fresh), max((abs(math.log(ratio)) for ratio in ratios), default=0.0)


def runs_of(record: Path) -> list[Run]:
    """The runs of earlier calls."""
    lines = record.read_bytes().splitlines() if record.exists() else []
    return [msgspec.json.decode(line, type=Run) for line in lines]


def broken(runs: list[Run]) -> list[str]:
    """The bars that the runs broke."""
    found = [f"{each.engine} {each.seed}: {each.findings} findings" for each in runs if each.findings]
    vllm = {each.seed: each for each in runs if each.engine == "vllm"}
    torch = {each.seed: each for each in runs if each.engine == "torch"}
    for seed, each in vllm.items():
        if each.largest_mismatch_nats > MISMATCH_NATS:
            found.append(f"seed {seed}: mismatch of {each.largest_mismatch_nats:.1e}")
        if each.engines != 1:
            found.append(f"seed {seed}: {each.engines} engines")
    if pairs := [(vllm[seed], torch[seed]) for seed in vllm.keys() & torch.keys()]:
        less = statistics.mean(its.after_grpo - one.after_grpo for one, its in pairs)
        times = max(one.grpo_s / its.grpo_s for one, its in pairs)
        found += [f"held-out accuracy {less:.3f} below torch's"] if less > LEARNED_LESS else []
        found += [f"GRPO took {times:.1f} times as long as torch's"] if times > SLOWER else []
    return found


def main() -> None:
    options = read_options(
        __doc__,
        seeds=[1, 2, 3],
        engines=["torch", "vllm"],
        record=(Path, "The file of the runs so far; without it a call starts anew."),
        seconds=(7200.0, "After so long no new run is begun."),
        set=([], "Other settings of the demo's file, for a look at it."),
    )
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        record = options.record or Path(folder) / "record.jsonl"
        done = {(each.engine, each.seed) for each in runs_of(record)}
        for seed, engine in ((seed, engine) for seed in options.seeds for engine in options.engines):
            if (engine, seed) in done or time.monotonic() - began_s > options.seconds:
                continue
            place = Path(folder) / f"{engine}-{seed}"
            place.mkdir()
            ended = run(engine, seed, place / "demo", options.set)
            with record.open("ab") as file:
                file.write(msgspec.json.encode(ended) + b"\n")
            print(msgspec.json.encode(ended).decode(), file=sys.stderr, flush=True)
        runs = runs_of(record)
    tell({"runs": msgspec.to_builtins(runs)})
    if found := broken(runs):
        sys.exit(f"a bar is broken: {'; '.join(found)}")


if __name__ == "__main__":
    main()

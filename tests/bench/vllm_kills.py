"""kill -9 at random moments of vLLM's processes and of the explorer, in turn, while the demo trains on vLLM's rollouts.

Runs in the environment of the CPU engines. Each kill costs a start of the engine, so kills are collected in runs of a
few each, over as many calls as it takes: a run that ended and was verified is a line of the record, and a later call
goes on from there. After each kill all processes of that explorer must be gone within seconds, with what they held in
shared memory; at the end of each run `verify` must find nothing.

    build/engines-cpu/bin/python -P tests/bench/vllm_kills.py [--kills 20] [--parts core worker explorer]
        [--each-run 6] [--record kills.jsonl] [--seconds 7200]
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import msgspec
import psutil

sys.path.insert(0, str(Path(__file__).parent))

from demo_kills import checked, target
from figures import read_options, tell
from kill_record import SHARED, alive, collected, gone_after_s, kill_options

from rftd.daemon.demo.outcome import DemoOutcome
from rftd.daemon.serve.data_folder import DataFolder

PARTS = ("core", "worker", "explorer")
NAMES = {"core": "VLLM::EngineCore", "worker": "VLLM::Worker"}
LEFT_S = 5.0
"""The longest that a process may stay after one of its explorer's was killed."""
LONGEST_RUN_S = 3600.0
STEPS_A_KILL = 25
"""GRPO steps for each kill: rollouts are under way when it comes, and steps are left when the next engine is up."""


class Kill(msgspec.Struct, frozen=True, kw_only=True):
    """One kill, and what came of it."""

    part: str
    held_mib: int
    gone_after_s: float
    shared_left: tuple[str, ...]
    """Segments of shared memory that its processes had mapped, and that are there still."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One demo with its kills, as a line of the record."""

    kills: tuple[Kill, ...]
    exit_status: int
    state: str
    wall_s: float
    findings: int
    executions: int
    steps: int
    produced: int
    load: float

    @property
    def broken(self) -> str:
        """The bars that it broke; empty if none."""
        slow = [f"{kill.part} gone after {kill.gone_after_s} s" for kill in self.kills if kill.gone_after_s > LEFT_S]
        left = [f"{kill.part} left {kill.shared_left}" for kill in self.kills if kill.shared_left]
        ended = [] if self.state == "completed" and self.executions == self.steps else [f"the run {self.state}"]
        found = [f"{self.findings} findings"] if self.findings else []
        return "; ".join([*slow, *left, *ended, *found])


class Family:
    """An explorer with all of vLLM's processes."""

    def __init__(self, pid: int) -> None:
        """Raises psutil.Error if it is gone."""
        explorer = psutil.Process(pid)
        self.processes = [explorer, *explorer.children(recursive=True)]
        self._commands = {each.pid: " ".join(each.cmdline()) for each in self.processes}

    def victim(self, part: str) -> int | None:
        """The process of a part; None if it has not started."""
        if part == "explorer":
            return self.processes[0].pid
        return next((pid for pid, command in self._commands.items() if NAMES[part] in command), None)

    @property
    def whole(self) -> bool:
        return all(self.victim(part) for part in NAMES)

    def memory_bytes(self) -> int:
        return sum(each.memory_info().rss for each in self.processes if alive(each))

    def segments(self) -> set[Path]:
        """The shared memory of Python's that any of them has mapped."""
        paths = {Path(mapped.path) for each in self.processes if alive(each) for mapped in each.memory_maps()}
        return {path for path in paths if path.parent == SHARED and path.name.startswith("psm_")}


def struck(folder: Path, part: str, chance: random.Random) -> Kill | None:
    """One kill at a random moment of a whole explorer's life; None if there was none to kill."""
    pid = target(folder, "explorer")
    try:
        if pid is None or not Family(pid).whole:
            return None
        time.sleep(chance.uniform(0.0, 10.0))
        family = Family(pid)
        victim = family.victim(part)
        if victim is None:
            return None
        memory = family.memory_bytes()
        segments = family.segments()
        os.kill(victim, signal.SIGKILL)
    except (psutil.Error, ProcessLookupError):
        return None
    gone_s = round(gone_after_s(family.processes, 10 * LEFT_S), 2)
    left = tuple(sorted(path.name for path in segments if path.exists()))
    return Kill(part=part, held_mib=memory >> 20, gone_after_s=gone_s, shared_left=left)


def killed_run(parts: list[str], folder: Path, *, seed: int) -> Run:
    """One demo, during which these parts are killed one after another, or fewer if it ends before."""
    chance = random.Random(seed)
    began_s = time.monotonic()
    command = [sys.executable, "-P", "-m", "rftd.daemon", "demo", "--engine", "vllm", "--bar", "0"]
    command += ["--seed", str(seed), "--folder", str(folder), "-s", "trainer.save_interval=10"]
    # What was learned is no matter here: a few steps of SFT are enough.
    command += ["-s", "stages[0].buffer.total_steps=10", "-s", f"buffer.total_steps={STEPS_A_KILL * len(parts)}"]
    demo = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    done: list[Kill] = []
    while len(done) < len(parts) and demo.poll() is None:
        time.sleep(1.0)
        kill = struck(folder, parts[len(done)], chance)
        if kill is not None:
            done.append(kill)
            print(msgspec.json.encode(kill).decode(), file=sys.stderr, flush=True)
    status = demo.wait(timeout=LONGEST_RUN_S)
    outcome = msgspec.json.decode((folder / "outcome.json").read_bytes(), type=DemoOutcome)
    report = asyncio.run(checked(DataFolder(folder / "data")))
    return Run(
        kills=tuple(done),
        exit_status=status,
        state=outcome.state,
        wall_s=round(time.monotonic() - began_s, 1),
        findings=len(report.findings),
        executions=report.experiments[0].executions,
        steps=report.experiments[0].steps,
        produced=report.experiments[0].produced,
        load=os.getloadavg()[2],
    )


def main() -> None:
    options = read_options(__doc__, **kill_options(PARTS))
    runs = collected(options, Run, lambda parts, folder, seed: killed_run(parts, folder, seed=seed))
    done = [kill for run in runs for kill in run.kills]
    tell(
        {
            "kills": Counter(kill.part for kill in done),
            "longest_gone_s": {
                part: max((kill.gone_after_s for kill in done if kill.part == part), default=None)
                for part in options.parts
            },
            "findings": sum(run.findings for run in runs),
            "shared_left": sum(len(kill.shared_left) for kill in done),
            "runs": msgspec.to_builtins(runs),
        }
    )
    if broken := [run.broken for run in runs if run.broken]:
        sys.exit(f"a bar is broken: {broken}")


if __name__ == "__main__":
    main()

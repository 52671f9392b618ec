"""kill -9 at random moments of vLLM's processes and of the explorer, in turn, while the demo trains on vLLM's rollouts.

Runs in the environment of the CPU engines. After each kill all processes of that explorer must be gone within seconds,
with what they held in shared memory; at the end `verify` must find nothing.

    build/engines-cpu/bin/python -P tests/bench/vllm_kills.py [--kills 20] [--parts core worker explorer]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import psutil

sys.path.insert(0, str(Path(__file__).parent))

from demo_kills import checked, target
from figures import tell

from rftd.daemon.data_folder import DataFolder
from rftd.daemon.demo.outcome import DemoOutcome

NAMES = {"core": "VLLM::EngineCore", "worker": "VLLM::Worker"}
LEFT_S = 5.0
"""The longest that a process may stay after one of its explorer's was killed."""
SHARED = Path("/dev/shm")


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

    def gone_after_s(self) -> float:
        """The time until all of them have ended; they are waited for until the limit is far behind."""
        began_s = time.monotonic()
        while any(map(alive, self.processes)) and time.monotonic() - began_s < 10 * LEFT_S:
            time.sleep(0.02)
        return time.monotonic() - began_s


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def struck(folder: Path, part: str, chance: random.Random) -> dict[str, object] | None:
    """One kill at a random moment of a whole explorer's life; None if there was none to kill."""
    pid = target(folder, "explorer")
    try:
        if pid is None or not Family(pid).whole:
            return None
        time.sleep(chance.uniform(0.0, 15.0))
        family = Family(pid)
        victim = family.victim(part)
        if victim is None:
            return None
        memory = family.memory_bytes()
        os.kill(victim, signal.SIGKILL)
    except (psutil.Error, ProcessLookupError):
        return None
    return {"part": part, "held_mib": memory >> 20, "gone_after_s": round(family.gone_after_s(), 2)}


def killed_run(parts: list[str], kills: int, steps: int, folder: Path, seconds: float) -> dict[str, object]:
    """One demo, during which each part is killed so many times, or fewer if the demo or the time ends before."""
    chance = random.Random(1)
    began_s = time.monotonic()
    shared = set(SHARED.glob("psm_*"))
    command = [sys.executable, "-P", "-m", "rftd.daemon", "demo", "--engine", "vllm", "--bar", "0"]
    command += ["--folder", str(folder), "-s", "trainer.save_interval=10", "-s", f"buffer.total_steps={steps}"]
    demo = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    done: list[dict[str, object]] = []
    while len(done) < kills * len(parts) and demo.poll() is None and time.monotonic() - began_s < seconds:
        time.sleep(1.0)
        kill = struck(folder, parts[len(done) % len(parts)], chance)
        if kill is not None:
            done.append(kill)
            print(json.dumps(kill), file=sys.stderr, flush=True)
    status = demo.wait(timeout=3600)
    outcome = msgspec.json.decode((folder / "outcome.json").read_bytes(), type=DemoOutcome)
    report = asyncio.run(checked(DataFolder(folder / "data")))
    return {
        "kills": done,
        "exit_status": status,
        "state": outcome.state,
        "wall_s": round(time.monotonic() - began_s, 1),
        "rise": round(outcome.after_grpo - outcome.after_sft, 3),
        "findings": len(report.findings),
        "executions": report.experiments[0].executions,
        "steps": report.experiments[0].steps,
        "left_in_shared_memory": sorted(map(str, set(SHARED.glob("psm_*")) - shared)),
        "load": os.getloadavg()[2],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--parts", nargs="+", default=["core", "worker", "explorer"])
    parser.add_argument("--steps", type=int, default=300, help="GRPO steps of the demo.")
    parser.add_argument("--seconds", type=float, default=7200.0, help="After so long nothing more is killed.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = killed_run(options.parts, options.kills, options.steps, Path(folder) / "demo", options.seconds)
    tell(figures)
    slow = [kill for kill in figures["kills"] if kill["gone_after_s"] > LEFT_S]  # type: ignore[attr-defined]
    if slow or figures["findings"] or figures["state"] != "completed":
        sys.exit(f"a bar is broken: {slow or figures}")


if __name__ == "__main__":
    main()

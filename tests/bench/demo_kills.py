"""kill -9 at random moments of the real demo: daemon, explorer and trainer in turn, so many times each.

Each run must complete, `verify` must find nothing, and the demo's thresholds must hold.
Run: python -P tests/bench/demo_kills.py [--kills 20] [--roles daemon explorer trainer]
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import msgspec

sys.path.insert(0, str(Path(__file__).parent))

from figures import note, read_options, tell

from rftd.daemon.demo.outcome import DemoOutcome
from rftd.daemon.serve.data_folder import DataFolder, Endpoint
from rftd.streams.sqlite.view import SqliteView
from rftd.streams.verify.checker import verify
from rftd.streams.verify.report import VerifyReport


def target(folder: Path, role: str) -> int | None:
    """The process of a role; None while there is none, or nobody can tell."""
    try:
        endpoint = msgspec.json.decode((folder / "data" / "endpoint.json").read_bytes(), type=Endpoint)
        if role == "daemon":
            return endpoint.pid
        page = httpx.get(f"{endpoint.url}/v1/experiments/sums", timeout=5.0, trust_env=False).json()
    except (OSError, httpx.HTTPError, msgspec.MsgspecError, ValueError):
        return None
    return next(
        (each["pid"] for each in page.get("workers", ()) if each["role"] == role and each["state"] == "live"), None
    )


def killed_run(role: str, kills: int, seed: int, folder: Path) -> dict[str, object]:
    """One demo, during which the role's process is killed so many times."""
    chance = random.Random(seed)
    command = [sys.executable, "-P", "-m", "rftd.daemon", "demo", "--seed", str(seed), "--folder", str(folder)]
    command += ["-s", "trainer.save_interval=10"]
    began_s = time.monotonic()
    demo = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    done = 0
    time.sleep(8.0)
    while done < kills and demo.poll() is None:
        time.sleep(chance.uniform(0.5, 4.0))
        pid = target(folder, role)
        if pid is None or demo.poll() is not None:
            continue
        try:
            os.kill(pid, signal.SIGKILL)
            done += 1
        except ProcessLookupError:
            continue
    status = demo.wait(timeout=900)
    outcome = msgspec.json.decode((folder / "outcome.json").read_bytes(), type=DemoOutcome)
    report = asyncio.run(checked(DataFolder(folder / "data")))
    return {
        "role": role,
        "kills": done,
        "exit_status": status,
        "state": outcome.state,
        "wall_s": round(time.monotonic() - began_s, 1),
        "rise": round(outcome.after_grpo - outcome.after_sft, 3),
        "last_256_reward": round(outcome.last_rewards_mean, 3),
        "findings": len(report.findings),
        "executions": report.experiments[0].executions,
        "steps": report.experiments[0].steps,
        "generations": report.experiments[0].generations,
        "fenced_records": report.experiments[0].void,
    }


async def checked(data: DataFolder) -> VerifyReport:
    """The offline checker's report on a run's log."""
    log = await SqliteView.open(data.log)
    try:
        return await verify(log)
    finally:
        await log.close()


def main() -> None:
    options = read_options(__doc__, kills=20, roles=["daemon", "explorer", "trainer"])
    runs = []
    for number, role in enumerate(options.roles):
        with tempfile.TemporaryDirectory() as folder:
            runs.append(killed_run(role, options.kills, number + 1, Path(folder) / "demo"))
            note(runs[-1])
    tell({"runs": runs})


if __name__ == "__main__":
    main()

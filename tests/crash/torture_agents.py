"""Kills of explorer, agent, sandbox and daemon beside agents' commands, by default twenty of each.

python -P tests/crash/torture_agents.py [--kills 20] [--seed 1]
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from synthetic.until import poll
from synthetic.worlds.agent_run import ROLES, AgentRun


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rftd-agents-") as folder:
        run = AgentRun(Path(folder), steps=5 * options.kills)
        with run.scene.host:
            name = run.submit()
            run.kill_each(name, options.kills, random.Random(options.seed))
            page = run.scene.until_ended(name, timeout_s=3600)
            assert page.experiment.summary.state == "completed", page.experiment.summary.reason
            report = run.scene.verified()
            poll(lambda: not run.left(), told=run.left)
            figures = {
                "killed": {role: run.killed[role] for role in ROLES},
                "trained": run.check(),
                "expected": 5 * options.kills * 4 * 4,
                "lost": page.experiment.books.balance,
                "findings": len(report.findings),
                "left": len(run.left()),
                "seconds": round(time.monotonic() - began_s),
            }
    print(json.dumps(figures))
    assert figures["trained"] == figures["expected"] and not figures["lost"] and report.clean


if __name__ == "__main__":
    main()

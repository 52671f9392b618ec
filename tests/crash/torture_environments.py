"""Kills of explorer, pipeline, environment server, session, sandbox and daemon, by default twenty of each.

python -P tests/crash/torture_environments.py [--kills 20] [--seed 1]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from synthetic.until import poll
from synthetic.worlds.environment_run import PipelineRun


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rftd-games-") as folder:
        run = PipelineRun(Path(folder), steps=100_000)
        with run.scene.host:
            name = run.submit()
            run.kill_each(name, options.kills, random.Random(options.seed))
            cancelled = run.scene.rftd("cancel", name)
            assert cancelled.status == 0, cancelled.err
            page = run.scene.until_ended(name)
            report = run.scene.verified()
            poll(lambda: not run.left(), told=run.left)
            figures = {
                "killed": {role: run.killed[role] for role in run.roles},
                "steps": page.experiment.summary.step,
                "planned_once_of_drawn_ids": run.check(),
                "shaped_once_by_the_pipeline": run.judged(),
                "lost": page.experiment.books.balance,
                "findings": len(report.findings),
                "left": len(run.left()),
                "seconds": round(time.monotonic() - began_s),
                "load": round(os.getloadavg()[1], 1),
            }
    print(json.dumps(figures))
    assert figures["steps"] > 0 and not figures["lost"] and not figures["left"] and report.clean, report.findings


if __name__ == "__main__":
    main()

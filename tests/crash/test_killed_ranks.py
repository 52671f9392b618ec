"""A trainer of several processes in a real run: whichever of them is killed, nothing is lost, doubled or left over."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import psutil
import pytest
from synthetic.daemon.scene import EXPERIMENT, Scene
from synthetic.until import poll

from rftd.streams.events.worker import WorkerStopped

RANKED = (
    "stages=[]",
    "buffer.total_steps=24",
    "explorer.eval_interval=1000",
    "trainer.save_interval=3",
    "trainer.engine_args={ranks: 2, step_s: 0.02}",
)
KILLS = 4


def ranks_of(scene: Scene, name: str) -> list[psutil.Process]:
    """The rank processes of the live trainer; none while it starts."""
    page = scene.page(name)
    found = []
    for worker in page.workers if page else ():
        if worker.role == "trainer" and worker.state == "live" and psutil.pid_exists(worker.pid):
            found = [each for each in psutil.Process(worker.pid).children() if _is_rank(each)]
    return found


def _is_rank(process: psutil.Process) -> bool:
    try:
        return "rftd.workers.engines.ranks.rank_process" in process.cmdline()
    except psutil.Error:
        return False


@pytest.mark.e2e
@pytest.mark.slow
def test_ranks_are_killed_at_random_moments(tmp_path: Path, chance: random.Random) -> None:
    scene = Scene(tmp_path)
    killed: set[int] = set()
    with scene.host:
        name = scene.submit(EXPERIMENT, *RANKED)
        for number in range(KILLS):
            scene.until_step(name, 4 * (number + 1), timeout_s=180.0)
            poll(lambda: len(ranks_of(scene, name)) == 2 and not killed & {p.pid for p in ranks_of(scene, name)}, 120.0)
            ranks = ranks_of(scene, name)
            victim = chance.choice(ranks) if number != 2 else ranks[0].parent()
            assert victim is not None
            killed.update(each.pid for each in ranks)
            os.kill(victim.pid, signal.SIGKILL)
            poll(lambda: not any(_living(pid) for pid in killed), 60.0)
        page = scene.until_ended(name, timeout_s=240.0)
    assert page.experiment.summary.state == "completed", page.experiment.summary.reason
    assert page.experiment.books.balance == 0
    report = scene.verified()
    assert report.clean, report.findings
    assert report.experiments[0].steps == 24
    reasons = [event.reason for event in scene.events(WorkerStopped) if "rank" in event.reason]
    assert any("was ended by SIGKILL" in reason for reason in reasons), reasons
    assert not [each for each in psutil.process_iter() if _is_rank(each) and str(tmp_path) in str(_environ(each))]


def _living(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _environ(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except psutil.Error:
        return {}

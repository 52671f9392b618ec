"""Dense kills of running experiments: SIGKILL again as soon as there was some progress since the last one."""

from __future__ import annotations

import asyncio
import math
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from uuid import UUID

import msgspec
import psutil
from synthetic.daemon.scene import ENDED, EXPERIMENT, Scene
from synthetic.deaths.witness import Witness
from synthetic.until import PATIENCE_S

from rftd.daemon.http.views.experiments import ExperimentPage
from rftd.streams.events.step import StepCompleted
from rftd.streams.log.envelope import Position
from rftd.streams.sqlite.view import SqliteView

ROLES = ("daemon", "explorer", "trainer")
IN_ORDER = (
    "deterministic=true",
    "synchronizer.sync_style=fixed",
    "algorithm.sample_strategy=default",
    "algorithm.sample_strategy_args={}",
    "explorer.max_retry_times=100",
)
"""Overrides with which `scene.EXPERIMENT` promises the same weights whatever happens to it.

A task whose explorers die on each of its attempts would be given up, and the weights would be others.
"""
REUSE = (
    "buffer.trainer_input.experience_buffer.replay_buffer"
    "={enable: true, priority_fn_args: {decay: 0.6}, reuse_cooldown_time: 0.2}",
    "explorer.rollout_model.extra_engine_args.latency_s=0.4",
)
"""Overrides: what has rested is trained again long before there is enough that is new."""
PACES = {
    "explorer_driven": ("synchronizer={sync_style: explorer_driven, sync_interval: 2, sync_offset: 1}", *REUSE),
    "trainer_driven": (
        "synchronizer={sync_style: trainer_driven, explorer_sync_interval: 1, trainer_sync_interval: 2}",
        *REUSE,
    ),
    "fixed": (
        "synchronizer={sync_style: fixed, explorer_sync_interval: 2, trainer_sync_interval: 1, sync_offset: 1}",
        "trainer.save_interval=3",
    ),
    "reuse": REUSE,
}
"""Overrides of `scene.EXPERIMENT` for other paces than its own: reuse with cooldown, and styles with sync points."""
UNBOUNDED = ("algorithm.sample_strategy=default", "algorithm.sample_strategy_args={}")
"""Overrides: how old an experience may be follows from the pace."""
STALLED_S = PATIENCE_S


class Killing:
    """Kills processes of a scene's runs, and counts what it killed by role."""

    def __init__(
        self,
        scene: Scene,
        chance: random.Random,
        *,
        roles: Sequence[str] = ROLES,
        together_p: float = 0.1,
        longest_pause_s: float = 0.15,
    ) -> None:
        """`together_p`: how often every role dies in one moment; kills come up to `longest_pause_s` after progress."""
        self.killed: Counter[str] = Counter()
        self.moments = 0
        self._scene = scene
        self._chance = chance
        self._roles = tuple(roles)
        self._together_p = together_p
        self._longest_pause_s = longest_pause_s

    @property
    def total(self) -> int:
        """Processes killed so far."""
        return self.killed.total()

    def until_ended(self, name: str, moments: int) -> ExperimentPage:
        """The page of an experiment that was killed at up to `moments` moments and then left to end."""
        left, before, changed_s = moments, -1, time.monotonic()
        while True:
            page = self._scene.page(name)
            if page is not None and page.experiment.summary.state in ENDED:
                return page
            now = before if page is None else _progress(page)
            if page is not None and now > before:
                changed_s = time.monotonic()
                if left and self.strike(page):
                    left, before = left - 1, now
                continue
            if time.monotonic() - changed_s > STALLED_S:
                raise AssertionError(f"{name} makes no progress any more: {page}")
            time.sleep(0.02)

    def strike(self, page: ExperimentPage) -> bool:
        """Kills one role's process, or all; False if none was there."""
        time.sleep(self._chance.uniform(0, self._longest_pause_s))
        together = self._chance.random() < self._together_p
        wanted = self._roles if together else [self._chance.choice(self._roles)]
        struck = [role for role in wanted if self._kill(role, page)]
        self.killed.update(struck)
        self.moments += bool(struck)
        return bool(struck)

    def _kill(self, role: str, page: ExperimentPage) -> bool:
        pids = [each.pid for each in page.workers if each.role == role and each.state == "live"]
        if role == "daemon":
            pids = [self._scene.host.pid]
        for pid in pids:
            if psutil.pid_exists(pid):
                os.kill(pid, signal.SIGKILL)
                return True
        return False


def _progress(page: ExperimentPage) -> int:
    books = page.experiment.books
    return page.experiment.summary.step + books.produced + books.failed_rollouts


class KillCounts(msgspec.Struct, kw_only=True):
    """The counts of a series of killed experiments."""

    experiments: int = 0
    moments: int = 0
    """The moments at which one process or all of them were killed."""
    kills: dict[str, int] = {}
    """SIGKILLs by role."""
    steps: int = 0
    executions: int = 0
    """Steps of all generations: what was executed again is the difference."""
    generations: int = 0
    records: int = 0
    void: int = 0
    acknowledged: int = 0
    lost: list[str] = []
    """Acknowledged positions that are not in the log. Must stay empty."""
    broken: list[str] = []
    """Experiments that did not complete, and promises that `verify` found broken. Must stay empty."""
    wall_s: float = 0.0


def killed_series(
    scene: Scene,
    chance: random.Random,
    kills: int,
    *,
    moments: int = 25,
    most_s: float = math.inf,
    text: str = EXPERIMENT,
    overrides: Sequence[Sequence[str]] = ((),),
) -> KillCounts:
    """Runs experiments one after the other, each killed at up to `moments` moments, until `kills` processes died.

    After `most_s` seconds no other experiment is begun. Each takes the next of the `overrides`, in turn.
    """
    counts, killing, began_s = KillCounts(), Killing(scene, chance), time.monotonic()
    with Witness(scene.data.socket) as witness:
        while killing.total < kills and time.monotonic() - began_s < most_s:
            changes = overrides[counts.experiments % len(overrides)]
            name = scene.submit(text, f"name=killed_{counts.experiments}", *changes)
            page = killing.until_ended(name, min(moments, kills - killing.total))
            report = scene.verified()
            found = next(each for each in report.experiments if each.name == name)
            counts.experiments += 1
            counts.steps += found.steps
            counts.executions += found.executions
            counts.generations += found.generations
            counts.void += found.void
            counts.records = report.records
            summary, books = page.experiment.summary, page.experiment.books
            if summary.state != "completed" or summary.step != summary.total_steps or books.balance:
                counts.broken.append(f"{name}: {summary} {books}")
            counts.broken += [f"{name}: {finding}" for finding in report.findings]
    if witness.failure is not None:
        counts.broken.append(f"witness: {witness.failure}")
    counts.acknowledged = len(witness.acknowledged)
    counts.lost = [str(place) for place in asyncio.run(_lost(scene, witness))]
    counts.kills, counts.moments = dict(killing.killed), killing.moments
    counts.wall_s = round(time.monotonic() - began_s, 1)
    return counts


def trained(scene: Scene) -> list[str]:
    """sha256 of the weights after each step, as the surviving history of the scene's only experiment has it."""
    [weights] = weights_of(scene).values()
    return weights


def weights_of(scene: Scene) -> dict[UUID | None, list[str]]:
    """The sha256 of each experiment's weights after each step of the surviving history."""
    steps: dict[UUID | None, dict[int, str]] = {}
    for experiment, event in scene.events_by_experiment(StepCompleted):
        steps.setdefault(experiment, {})[event.step] = event.sha256 or ""
    return {experiment: [found[step] for step in sorted(found)] for experiment, found in steps.items()}


async def _lost(scene: Scene, witness: Witness) -> list[Position]:
    log = await SqliteView.open(scene.data.log)
    try:
        return await witness.lost(log)
    finally:
        await log.close()

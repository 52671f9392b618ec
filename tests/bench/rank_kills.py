"""kill -9 at random moments of a trainer of several ranks: of one rank, of the controller, of the daemon, in turn.

Real engines train a tiny model, the torch engine on ranks or verl's (in an environment with verl), and weights go to
the explorer through memory. Kills are collected in runs of a few each, over as many calls as it takes: a run that ended
and was verified is a line of the record, and a later call goes on from there. After a kill of a rank or of the
controller all ranks of that trainer must be gone within seconds, with what they had mapped of shared memory. At the end
of each run no process of it and none of its weights in memory may be left, and `verify` must find nothing lost, trained
twice or skipped.

    python -P tests/bench/rank_kills.py [--engine torch] [--kills 20] [--parts rank controller daemon]
        [--each-run 6] [--steps-a-kill 24] [--record kills.jsonl] [--seconds 7200]
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import msgspec
import psutil

sys.path.extend(str(Path(__file__).parents[above]) for above in (0, 1))

from figures import read_options, tell
from kill_record import SHARED, alive, collected, gone_after_s, kill_options
from left_behind import Watch
from synthetic.daemon.scene import EXPERIMENT, Scene
from synthetic.daemon.torch_world import TORCH, torch_files

from rftd.streams.events.step import StepCompleted

PARTS = ("rank", "controller", "daemon")
RANKS = 2
GONE_S = 5.0
"""The longest that a rank may stay after one of its trainer was killed; on a machine that does nothing else."""
WAIT_S = 600.0
STEPS_A_KILL = 24
"""Unless asked for otherwise: steps are left when the ranks are up again."""
RANK = "rftd.workers.engines.ranks.rank_process"


class Kill(msgspec.Struct, frozen=True, kw_only=True):
    """One kill, and what came of it."""

    part: str
    at_step: int
    gone_after_s: float
    """The time until all ranks of that trainer had ended; 0 for the daemon, whose workers go on."""
    shared_left: tuple[str, ...]


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One experiment with its kills, as a line of the record."""

    engine: str
    kills: tuple[Kill, ...]
    state: str
    wall_s: float
    findings: tuple[str, ...]
    steps: int
    executions: int
    wanted_steps: int
    balance: int
    processes: int
    """The processes of it that were seen."""
    segments: int
    """The files of shared memory that they were seen to have mapped."""
    left: tuple[str, ...]
    """Of those, and of the folders of such files, the ones that were there after its daemon had gone for good."""
    load: float

    @property
    def broken(self) -> str:
        """The bars that it broke; empty if none."""
        told = list(self.findings)
        told += [f"{each.part} gone after {each.gone_after_s} s" for each in self.kills if each.gone_after_s > GONE_S]
        told += [f"{each.part} left {each.shared_left}" for each in self.kills if each.shared_left]
        if self.state != "completed" or self.steps != self.wanted_steps or self.balance:
            told.append(f"{self.state} after {self.steps} of {self.wanted_steps} steps, balance {self.balance}")
        # A run of which nothing was seen would leave nothing, whatever it did.
        told += [f"{self.processes} processes were seen"] if self.processes < RANKS + 3 else []
        told += [] if self.segments else ["no shared memory was seen"]
        return "; ".join([*told, *(f"left: {each}" for each in self.left)])


class Trainer:
    """A controller with its ranks."""

    def __init__(self, pid: int) -> None:
        """Raises psutil.Error if it is gone."""
        self.controller = psutil.Process(pid)
        self.ranks = [each for each in self.controller.children() if RANK in each.cmdline()]

    def shared(self) -> set[Path]:
        """The shared memory that any of them has mapped."""
        processes = [self.controller, *self.ranks]
        paths = {Path(mapped.path) for each in processes if alive(each) for mapped in each.memory_maps()}
        return {path for path in paths if path.parent == SHARED}


def trainer_of(scene: Scene, name: str) -> Trainer | None:
    """The trainer with all of its ranks; None while there is none."""
    page = scene.page(name)
    for worker in page.workers if page is not None else ():
        if worker.role == "trainer" and worker.state == "live":
            try:
                found = Trainer(worker.pid)
            except psutil.Error:
                return None
            return found if len(found.ranks) == RANKS else None
    return None


def struck(scene: Scene, name: str, part: str, chance: random.Random, *, after_step: int) -> Kill | None:
    """One kill soon after its ranks were there or, three times of four, after `after_step`; None if missed.

    So it comes while they start, open and restore, or while they train, publish and save.
    """
    if trainer_of(scene, name) is None:
        return None
    if chance.random() < 0.75:
        while (step := _step(scene, name)) is not None and step <= after_step:
            time.sleep(0.1)
        time.sleep(chance.uniform(0.0, 2.0))
    else:
        time.sleep(chance.uniform(0.0, 10.0))
    page = scene.page(name)
    trainer = trainer_of(scene, name)
    if page is None or trainer is None or page.experiment.summary.state != "running":
        return None
    step = page.experiment.summary.step
    if part == "daemon":
        os.kill(scene.host.pid, signal.SIGKILL)
        return Kill(part=part, at_step=step, gone_after_s=0.0, shared_left=())
    try:
        shared = trainer.shared()
        victim = chance.choice(trainer.ranks) if part == "rank" else trainer.controller
        os.kill(victim.pid, signal.SIGKILL)
    except (psutil.Error, ProcessLookupError):
        return None
    gone_s = round(gone_after_s(trainer.ranks, 20 * GONE_S), 2)
    left = tuple(sorted(path.name for path in shared if path.exists()))
    return Kill(part=part, at_step=step, gone_after_s=gone_s, shared_left=left)


def _step(scene: Scene, name: str) -> int | None:
    """The steps so far; None once it has ended."""
    page = scene.page(name)
    if page is None:
        return -1
    return page.experiment.summary.step if page.experiment.summary.state == "running" else None


def killed_run(engine: str, parts: list[str], folder: Path, *, seed: int, steps: int) -> Run:
    """One experiment of so many steps, during which these parts are killed in turn, or fewer if it ends before."""
    began_s = time.monotonic()
    folder.mkdir()
    torch_files(folder)
    with Watch(folder) as watch:
        scene = Scene(folder)
        with scene.host:
            name = submitted(scene, engine, steps)
            done = struck_in_turn(scene, name, parts, random.Random(seed))
            page = scene.until_ended(name, timeout_s=WAIT_S)
        left = watch.left(GONE_S)
    report = scene.verified()
    return Run(
        engine=engine,
        kills=tuple(done),
        state=page.experiment.summary.state,
        wall_s=round(time.monotonic() - began_s, 1),
        findings=tuple(map(str, report.findings)),
        steps=report.experiments[0].steps,
        executions=len(scene.events(StepCompleted)),
        wanted_steps=steps,
        balance=page.experiment.books.balance,
        processes=len(watch.processes),
        segments=len(watch.segments),
        left=left,
        load=os.getloadavg()[2],
    )


def submitted(scene: Scene, engine: str, steps: int) -> str:
    """The name of an experiment of so many steps, whose weights go to the explorer through memory."""
    return scene.submit(
        EXPERIMENT,
        *TORCH,
        "stages=[]",
        f"buffer.total_steps={steps}",
        "explorer.rollout_model={engine_type: torch, engine_num: 1}",
        f"trainer={{trainer_type: {engine}, save_interval: 3, engine_args: {{device: cpu, ranks: {RANKS}}}}}",
        "trainer.max_idle_steps=0",
        "synchronizer.sync_method=memory",
    )


def struck_in_turn(scene: Scene, name: str, parts: list[str], chance: random.Random) -> list[Kill]:
    """The kills of these parts, one after another, or fewer if the experiment ends before."""
    done: list[Kill] = []
    # Where it begins counts too: the first kill may come while the first ranks open the model.
    while len(done) < len(parts):
        page = scene.page(name)
        if page is not None and page.experiment.summary.state in ("completed", "failed", "rejected"):
            break
        time.sleep(0.1)
        after_step = done[-1].at_step if done else 0
        kill = struck(scene, name, parts[len(done)], chance, after_step=after_step)
        if kill is not None:
            done.append(kill)
            print(msgspec.json.encode(kill).decode(), file=sys.stderr, flush=True)
    return done


def main() -> None:
    options = read_options(
        __doc__,
        engine={"choices": ["torch", "verl"], "default": "torch"},
        steps_a_kill=STEPS_A_KILL,
        **kill_options(PARTS),
    )
    runs = collected(
        options,
        Run,
        lambda parts, folder, seed: killed_run(
            options.engine, parts, folder, seed=seed, steps=options.steps_a_kill * len(parts)
        ),
        ours=lambda run: run.engine == options.engine,
    )
    done = [kill for run in runs for kill in run.kills]
    tell(
        {
            "kills": Counter(kill.part for kill in done),
            "longest_gone_s": {
                part: max((kill.gone_after_s for kill in done if kill.part == part), default=None)
                for part in options.parts
                if part != "daemon"
            },
            "steps": sum(run.steps for run in runs),
            "findings": sum(len(run.findings) for run in runs),
            "left": sum(len(run.left) for run in runs) + sum(len(kill.shared_left) for kill in done),
            "runs": msgspec.to_builtins(runs),
        },
        may_be_zero=("gone_after_s",),
    )
    if broken := [run.broken for run in runs if run.broken]:
        sys.exit(f"a bar is broken: {broken}")


if __name__ == "__main__":
    main()

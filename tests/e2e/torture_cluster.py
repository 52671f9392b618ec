"""Ten disturbances of a run on Kafka and Postgres, so many times over, beside a foreign producer of transactions.

After each, ten more steps must follow within 60 s of the servers' return, the books balance, `verify` finds nothing,
and the tables rebuilt from the log equal the live ones. What the producer takes back must have no effect, and what it
commits must have one. Prints JSON, and ends with status 1 if anything else happened.
Run: python -P tests/e2e/torture_cluster.py [--times 2] [--stopped-s 60] [--only "broker killed" ...] [--seed 1]
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

sys.path.append(str(Path(__file__).parents[1]))

from synthetic.daemon.scene import EXPERIMENT, SHORT
from synthetic.servers.cluster_scene import Cluster, ClusterScene
from synthetic.servers.disturbances import DISTURBANCES, Disturbance, strike
from synthetic.servers.foreign_sink import SOURCE, ForeignSink, id_of

from rftd.daemon.config.loading import load_text
from rftd.streams.events.experiment import ExperimentPrioritized, ExperimentRejected
from rftd.streams.log.topics import EVENTS

MORE_STEPS: Final = 10
WITHIN_S: Final = 60.0
PATIENCE_S: Final = 600.0
"""How long the ten steps are waited for, so that a late run is told from one that stands still."""


class Outcome(msgspec.Struct, kw_only=True):
    """One disturbance, and the state of the run after it."""

    disturbance: str
    away_s: float = 0.0
    """From the strike until the servers answered again."""
    ten_steps_s: float = 0.0
    """From then until ten more steps were seen."""
    step: int = 0
    """The newest step when `verify` read the log."""
    records: int = 0
    balance: int = 0
    findings: list[str] = []
    digests_equal: bool = False
    load: float = 0.0
    """The machine's load average at the end."""
    wrong: list[str] = []


class Pass(msgspec.Struct, kw_only=True):
    """One experiment that went through the disturbances, and the foreign producer beside it."""

    outcomes: list[Outcome]
    committed: int
    uncertain: int
    effective: int
    refused: list[str]
    """The different reasons of the requests that were refused."""
    taken_back: int
    left_open: int
    daemon_restarts: int
    tracebacks: int
    wrong: list[str] = []


def disturbed(
    scene: ClusterScene, name: str, disturbance: Disturbance, chance: random.Random, stopped_s: float
) -> Outcome:
    """The outcome of one disturbance of a run that goes on."""
    outcome = Outcome(disturbance=disturbance.name)
    struck_s = time.monotonic()
    strike(scene, name, disturbance, chance, stopped_s)
    returned_s = time.monotonic()
    outcome.away_s = round(returned_s - struck_s, 1)
    first = step_of(scene, name)
    scene.until_step(name, first + MORE_STEPS, PATIENCE_S)
    outcome.ten_steps_s = round(time.monotonic() - returned_s, 1)
    if outcome.ten_steps_s > WITHIN_S:
        outcome.wrong.append(f"ten more steps took {outcome.ten_steps_s} s")
    examine(scene, name, outcome)
    # The tables may have lagged behind a run that had stopped: it goes on if it passes what the log said.
    scene.until_step(name, outcome.step + 1, PATIENCE_S)
    outcome.load = round(os.getloadavg()[0], 1)
    return outcome


def endless(folder: Path) -> str:
    """The file of an experiment that goes on until it is cancelled, at up to five steps a second."""
    overrides = (
        "name=disturbed",
        f"model.model_path={folder}/fake",
        "buffer.total_steps=100000",
        "trainer.engine_args.step_s=0.2",
        "explorer.eval_interval=100",
        "trainer.save_interval=25",
    )
    config = load_text(EXPERIMENT, "endless.yaml", overrides=overrides, environ={}, cwd=folder).config
    return json.dumps(config)


def step_of(scene: ClusterScene, name: str) -> int:
    """The step of the first page that is answered."""
    return scene.until_step(name, 0, PATIENCE_S).experiment.summary.step


def examine(scene: ClusterScene, name: str, outcome: Outcome) -> None:
    """Notes what the offline checker, the tables and the tables made anew say of the run, which goes on meanwhile."""
    report = scene.verified()
    summary = next(row for row in report.experiments if row.name == name)
    outcome.step = summary.steps
    outcome.records = report.records
    outcome.findings = [f"{finding.rule}: {finding.what}" for finding in report.findings]
    outcome.balance = scene.balance(name)
    rebuilt = scene.direct("rebuild", "--verify", "--json")
    outcome.digests_equal = rebuilt.status == 0 and json.loads(rebuilt.out)["compared"]
    outcome.wrong += [f"finding: {finding}" for finding in outcome.findings]
    if outcome.balance:
        outcome.wrong.append(f"the books are off by {outcome.balance}")
    if not outcome.digests_equal:
        outcome.wrong.append(f"rebuilt tables differ: {rebuilt.status} {rebuilt.out[-500:]} {rebuilt.err[-500:]}")


def disturbed_run(
    cluster: Cluster, folder: Path, disturbances: Sequence[Disturbance], seed: int, stopped_s: float, *, stray: bool
) -> Pass:
    """One experiment through the disturbances, in an order of its own; with `stray`, transactions on every topic."""
    chance = random.Random(seed)
    order = chance.sample(list(disturbances), len(disturbances))
    folder.mkdir()
    scene = cluster.scene(folder, "--roots", str(folder))
    outcomes = []
    with scene.host:
        name = "disturbed"
        with ForeignSink(scene, name, endless(folder), chance, EVENTS if stray else ()) as sink:
            scene.until_step(name, MORE_STEPS, PATIENCE_S)
            for disturbance in order:
                outcomes.append(disturbed(scene, name, disturbance, chance, stopped_s))
                sys.stderr.write(msgspec.json.encode(outcomes[-1]).decode() + "\n")
        until_answered(scene, sink)
        scene.rftd("cancel", name)
        state = scene.until_ended(name, PATIENCE_S).experiment.summary.state
        after = scene.until_ended(scene.submit(EXPERIMENT, *SHORT, "name=after"), PATIENCE_S).experiment.summary.state
        last = Outcome(disturbance="none: the run is cancelled, and another completes")
        examine(scene, name, last)
        outcomes.append(last)
    return judged(scene, sink, outcomes, (state, after))


def answers(scene: ClusterScene) -> tuple[list[str], dict[str, str]]:
    """The ids of the producer's requests that had an effect, and of those that were refused, with the reasons."""
    refused = {}
    for event in scene.events(ExperimentRejected):
        if event.request is not None and event.request.source == SOURCE:
            refused[event.request.id] = event.reason
    return [id_of(event.priority) for event in scene.events(ExperimentPrioritized)], refused


def until_answered(scene: ClusterScene, sink: ForeignSink) -> None:
    """Returns once what the producer surely committed is answered, or was not in time: `judged` says which."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        effective, refused = answers(scene)
        if set(sink.committed) <= {*effective, *refused}:
            return
        time.sleep(2.0)


def judged(scene: ClusterScene, sink: ForeignSink, outcomes: list[Outcome], states: tuple[str, str]) -> Pass:
    """The pass with everything in it that should not be."""
    effective, refused = answers(scene)
    log = (scene.folder / "daemon.log").read_text()
    wrong = [f"{outcome.disturbance}: {what}" for outcome in outcomes for what in outcome.wrong]
    if states != ("cancelled", "completed"):
        wrong.append(f"the run and the next one ended as {states}")
    if missing := sorted(set(sink.committed) - {*effective, *refused}):
        wrong.append(f"committed requests without an answer: {missing}")
    if strange := sorted({*effective, *refused} - {*sink.committed, *sink.uncertain}):
        wrong.append(f"answers to requests that nobody committed: {strange}")
    if len(effective) != len(set(effective)) or refused.keys() & set(effective):
        wrong.append("a request was answered twice")
    if "Traceback" in log:
        wrong.append(log[log.index("Traceback") - 500 :][:3000])
    return Pass(
        outcomes=outcomes,
        committed=len(sink.committed),
        uncertain=len(sink.uncertain),
        effective=len(effective),
        refused=sorted(set(refused.values())),
        taken_back=sink.taken_back,
        left_open=sink.opened,
        daemon_restarts=scene.host.restarts,
        tracebacks=log.count("Traceback"),
        wrong=wrong,
    )


def main() -> int:
    """The exit status: 0 if nothing was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=2)
    parser.add_argument("--stopped-s", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=[disturbance.name for disturbance in DISTURBANCES])
    options = parser.parse_args()
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # it says at each try that the broker is away
    chosen = [disturbance for disturbance in DISTURBANCES if not options.only or disturbance.name in options.only]
    passes = []
    with tempfile.TemporaryDirectory(prefix="rftd-torture-cluster-") as name:
        folder = Path(name)
        folder.chmod(0o711)  # a server of root's runs as another user
        with Cluster(folder / "servers") as cluster:
            for number in range(options.times):
                seed = options.seed + number
                stray = seed % 2 == 0
                passes.append(
                    disturbed_run(cluster, folder / f"run-{seed}", chosen, seed, options.stopped_s, stray=stray)
                )
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(passes), indent=1).decode() + "\n")
    return 1 if any(run.wrong for run in passes) else 0


if __name__ == "__main__":
    sys.exit(main())

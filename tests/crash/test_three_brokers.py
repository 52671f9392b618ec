"""Three brokers, of which any may die: with one away everything goes on, with two away nothing is acknowledged.

Two daemons share the cluster, each with a log (a prefix) and tables of its own: a log has one daemon.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Event

import pytest
from synthetic.daemon.scene import ENDED, EXPERIMENT, Scene
from synthetic.deaths.killing import IN_ORDER, weights_of
from synthetic.deaths.witness import Witness
from synthetic.servers.three_brokers import BROKERS, ThreeBrokers, until_in_sync
from synthetic.until import PATIENCE_S

from rftd.daemon.http.views.experiments import ExperimentPage
from rftd.daemon.serve.log_source import log_to_read
from rftd.ops.clock import SystemClock
from rftd.ops.errors import UnreachableError
from rftd.ops.ids import SystemIds
from rftd.streams.events.worker import Heartbeat
from rftd.streams.kafka.log import KafkaLog
from rftd.streams.kafka.settings import parse_kafka
from rftd.streams.log.codec import Writer, decode_head
from rftd.streams.log.envelope import Draft

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.servers]

STEPS = 20
SIZE = ("stages=[]", f"buffer.total_steps={STEPS}", "trainer.engine_args.step_s=0.3", *IN_ORDER)
REFUSED_AFTER_S = 6.0
"""How long an append is tried here; in earnest a minute."""


@pytest.fixture(scope="module")
def three_brokers(servers_folder: Path) -> Iterator[ThreeBrokers]:
    """A cluster for the tests of this file."""
    cluster = ThreeBrokers(servers_folder / "three-brokers")
    try:
        yield cluster
    finally:
        cluster.end()


@pytest.fixture
def brokers(three_brokers: ThreeBrokers) -> ThreeBrokers:
    """The same, with all three up."""
    three_brokers.start()
    return three_brokers


def scene_of(brokers: ThreeBrokers, folder: Path, prefix: str) -> Scene:
    """A daemon with a log of its own on the cluster; not started yet."""
    (folder / prefix).mkdir()
    return Scene(folder / prefix, environ={"RFTD_KAFKA": brokers.url(f"{prefix}.")})


class Runs:
    """Equal experiments that one daemon runs one after another, at least one, until that is over or abandoned."""

    def __init__(self, scene: Scene, over: Event, abandoned: Event) -> None:
        self.scene = scene
        self.steps = 0
        """So far, of all experiments."""
        self.pages: list[ExperimentPage] = []
        """Of those that ended."""
        self._over = over
        self._abandoned = abandoned

    def run(self) -> None:
        """Returns once one has ended after the signal."""
        while not self.pages or not self._over.is_set():
            name = self.scene.submit_through(EXPERIMENT, f"name=run_{len(self.pages)}", *SIZE)
            self.pages.append(self._until_ended(name))
            assert self.pages[-1].experiment.summary.state == "completed", self.pages[-1].experiment.summary

    def proven(self, weights: list[str]) -> None:
        """Each run kept every promise, and made these weights."""
        report = self.scene.verified()
        assert report.clean, report.findings
        assert not report.dead_letters
        assert len(report.experiments) == len(self.pages)
        made = weights_of(self.scene)
        for summary in report.experiments:
            assert summary.state == "completed", summary
            assert summary.steps == STEPS, summary
            assert summary.executions == STEPS or summary.generations > 1, summary
            assert made[summary.experiment] == weights, summary
        assert self.scene.host.restarts == 0
        log = (self.scene.folder / "daemon.log").read_text()
        assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:4000]
        rebuilt = self.scene.rftd("rebuild", "--verify")
        assert rebuilt.status == 0, rebuilt

    def _until_ended(self, name: str) -> ExperimentPage:
        before, deadline_s = self.steps, time.monotonic() + PATIENCE_S
        while not self._abandoned.is_set():
            page = self.scene.page(name)
            if page is not None:
                self.steps = before + page.experiment.summary.step
                if page.experiment.summary.state in ENDED:
                    return page
            assert time.monotonic() < deadline_s, (page, (self.scene.folder / "daemon.log").read_text()[-3000:])
            time.sleep(0.05)
        raise AssertionError("the test has failed elsewhere")


def until_each_advanced(runs: list[Runs], working: list[Future[None]], steps: int = 2) -> None:
    """Returns once each daemon has trained so many more steps."""
    wanted, deadline_s = [each.steps + steps for each in runs], time.monotonic() + PATIENCE_S
    while any(each.steps < step for each, step in zip(runs, wanted, strict=True)):
        for future in working:
            if future.done():
                future.result()  # why it ended
        assert time.monotonic() < deadline_s, [each.steps for each in runs]
        time.sleep(0.05)


def lost(scene: Scene, witness: Witness) -> list[str]:
    """What was acknowledged to a witness and is not where that said."""
    clock = SystemClock()

    async def read() -> list[str]:
        async with log_to_read(scene.data, scene.log_at, clock=clock, ids=SystemIds(clock)) as log:
            return [str(place) for place in await witness.lost(log)]

    return asyncio.run(read())


def test_each_broker_dies_in_turn_under_two_daemons(brokers: ThreeBrokers, tmp_path: Path) -> None:
    untouched = Scene(tmp_path)
    scenes = [scene_of(brokers, tmp_path, name) for name in ("first", "second")]
    over, soon, abandoned = Event(), Event(), Event()
    soon.set()
    runs, alone = [Runs(scene, over, abandoned) for scene in scenes], Runs(untouched, soon, abandoned)
    with ExitStack() as stack:
        with ThreadPoolExecutor(3) as starting:
            list(starting.map(lambda scene: stack.enter_context(scene.host), [*scenes, untouched]))
        # Its threads start daemons that are gone, so they end before the daemons are stopped, also after a failure.
        pool = stack.enter_context(ThreadPoolExecutor(3))
        stack.callback(abandoned.set)
        witnesses = [stack.enter_context(Witness(parse_kafka(scene.environ["RFTD_KAFKA"]))) for scene in scenes]
        working = [pool.submit(each.run) for each in (*runs, alone)]
        for number in BROKERS:
            until_each_advanced(runs, working)
            asyncio.run(until_in_sync(brokers))
            assert asyncio.run(brokers.led_by(number)), "its death would concern nobody"
            brokers.kill(number)
            until_each_advanced(runs, working)
            brokers.start_one(number)
        asyncio.run(until_in_sync(brokers))
        until_each_advanced(runs, working)
        over.set()
        for future in working:
            future.result()
        [weights] = weights_of(untouched).values()
        assert len(weights) == STEPS
        assert len(set(weights)) == STEPS
        assert all(weights)
        for each in runs:
            each.proven(weights)
    for scene, witness in zip(scenes, witnesses, strict=True):
        assert witness.failure is None, witness.failure
        assert len(witness.acknowledged) > 100
        assert lost(scene, witness) == []


def until_not_ready(scene: Scene, words: str) -> None:
    """Returns once /readyz says no with these words."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        said = scene.get("/readyz")
        if said.status_code == 503 and words in said.text:
            return
        assert time.monotonic() < deadline_s, said.text
        time.sleep(0.1)


async def opened(scene: Scene) -> KafkaLog:
    clock = SystemClock()
    return await KafkaLog.open(parse_kafka(scene.environ["RFTD_KAFKA"]), clock=clock, ids=SystemIds(clock))


def heartbeat() -> Draft:
    """A record of a worker of no experiment, which touches nothing."""
    clock = SystemClock()
    ids = SystemIds(clock)
    beat = Heartbeat(worker=ids.new(), role="witness", slot=-1, state="busy")
    return Writer(source="witness", clock=clock, ids=ids).draft(beat, experiment=ids.new())


async def refused(scene: Scene, draft: Draft) -> UnreachableError:
    """Why the log does not take a draft."""
    log = await opened(scene)
    try:
        with pytest.raises(UnreachableError) as error:
            await log.append([draft])
    finally:
        await log.close()
    return error.value


async def appended(scene: Scene, draft: Draft) -> int:
    """How often readers meet a draft that is appended again."""
    log = await opened(scene)
    try:
        [place] = await log.append([draft])
        offset, times = 0, 0
        while records := await log.read(place.partition, offset):
            offset = records[-1].offset + 1
            times += sum(decode_head(record).id == draft.id for record in records)
        return times
    finally:
        await log.close()


def test_with_two_of_three_away_nothing_is_acknowledged(
    brokers: ThreeBrokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rftd.streams.kafka.log.APPEND_TIMEOUT_S", REFUSED_AFTER_S)
    scene, draft = scene_of(brokers, tmp_path, "third"), heartbeat()
    with scene.host, Witness(parse_kafka(scene.environ["RFTD_KAFKA"])) as witness:
        name = scene.submit(EXPERIMENT, *SIZE)
        scene.until_step(name, 5)
        asyncio.run(until_in_sync(brokers))
        leader = asyncio.run(brokers.leader_of("third.rftd.heartbeats"))  # it goes on taking what it cannot acknowledge
        away = [number for number in BROKERS if number != leader]
        brokers.kill(*away)
        assert "enough replicas are in sync" in str(asyncio.run(refused(scene, draft)))
        until_not_ready(scene, "enough replicas are in sync")
        asyncio.run(until_in_sync(brokers, 1))
        acknowledged = {str(id).encode() for id in list(witness.acknowledged)}
        copies = brokers.copies()
        assert len(acknowledged) > 20
        assert [key for key in acknowledged if copies[key] < 2] == []
        brokers.start_one(away[0])
        page = scene.until_ended(name, PATIENCE_S)
    assert page.experiment.summary.state == "completed", page.experiment.summary
    assert witness.failure is None
    assert len(witness.acknowledged) > len(acknowledged)
    assert lost(scene, witness) == []
    assert asyncio.run(appended(scene, draft)) == 1
    report = scene.verified()
    assert report.clean, report.findings
    assert report.experiments[0].steps == STEPS
    assert scene.host.restarts == 0
    log = (scene.folder / "daemon.log").read_text()
    assert "Traceback" not in log, log[-4000:]

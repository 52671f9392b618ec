"""Two daemons on one Kafka log by mistake: one of them decides, and nothing is lost or done twice.

With one database the second waits until the first has left. With a database each the second takes over: its fences
make the first one's later records void, and the first one ends and says why.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from synthetic.daemon.scene import EXPERIMENT, Scene

from rftd.daemon.http.views.experiments import ExperimentPage
from rftd.daemon.stack.kafka import KafkaBroker
from rftd.ops.errors import FencedError

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.servers]

LONG = "buffer.total_steps=150"
STEPS = 155


@pytest.fixture
def first(tmp_path: Path, kafka_broker: KafkaBroker, kafka_prefix: str, postgres_url: str) -> Iterator[Scene]:
    """The daemon that was there before."""
    kafka = f"kafka://{kafka_broker.bootstrap}/?prefix={kafka_prefix}"
    (tmp_path / "first").mkdir()
    scene = Scene(tmp_path / "first", environ={"RFTD_KAFKA": kafka, "RFTD_POSTGRES": postgres_url})
    with scene.host:
        yield scene


@pytest.fixture
def second(tmp_path: Path, first: Scene) -> Scene:
    """One in a folder of its own, on the same servers; not started yet."""
    (tmp_path / "second").mkdir()
    return Scene(tmp_path / "second", environ=first.environ)


def said(path: Path, text: str) -> str:
    """What a daemon printed, once it holds the text."""
    deadline_s = time.monotonic() + 60
    while text not in (log := path.read_text() if path.exists() else ""):
        assert time.monotonic() < deadline_s, log
        time.sleep(0.05)
    return log


def proven(scene: Scene, page: ExperimentPage) -> None:
    """The run completed, each step once in a generation, and the log is clean."""
    assert page.experiment.summary.state == "completed", page.experiment.summary
    report = scene.verified()
    assert report.clean, report.findings
    assert report.experiments[0].steps == STEPS
    # A trainer that was ended before its checkpoint takes up the steps after it again, as another generation.
    assert report.experiments[0].executions == STEPS or report.experiments[0].generations > 1
    rebuilt = scene.rftd("rebuild", "--verify")
    assert rebuilt.status == 0, rebuilt


def test_with_one_database_the_second_waits_and_goes_on_when_the_first_leaves(first: Scene, second: Scene) -> None:
    name = first.submit(EXPERIMENT, LONG)
    first.until_step(name, 5)
    process = second.spawn("rival", "serve", "--port", "0")
    try:
        log = said(second.folder / "rival.log", "another daemon keeps the tables of this database up to date")
        assert "stop that daemon, or give each its own database" in log
        first.host.stop()
        said(second.folder / "rival.log", "next: rftd submit")
    finally:
        process.terminate()
        assert process.wait(40) == 0
    log = (second.folder / "rival.log").read_text()
    assert "Traceback" not in log, log
    with second.host:
        page = second.until_ended(name)
        proven(second, page)


def test_with_a_database_each_the_second_takes_over(first: Scene, tmp_path: Path) -> None:
    (tmp_path / "second").mkdir()
    second = Scene(tmp_path / "second", environ={"RFTD_KAFKA": first.environ["RFTD_KAFKA"]})
    name = first.submit(EXPERIMENT, LONG)
    first.until_step(name, 5)
    with second.host:
        log = said(first.folder / "daemon.log", FencedError.code)
        assert "experiment.taken_over" in log, log
        assert "Traceback" not in log, log
        assert os.waitstatus_to_exitcode(os.waitpid(first.host.pid, 0)[1]) == FencedError.exit_status
        assert "worker.adopted" in said(second.folder / "daemon.log", "worker.adopted")
        proven(second, second.until_ended(name))


def test_a_daemon_that_wakes_after_its_replacement_changes_nothing(first: Scene, tmp_path: Path) -> None:
    """It stood still while another took over with a database of its own, and goes on as if nothing had happened."""
    (tmp_path / "second").mkdir()
    second = Scene(tmp_path / "second", environ={"RFTD_KAFKA": first.environ["RFTD_KAFKA"]})
    name = first.submit(EXPERIMENT, LONG)
    first.until_step(name, 5)
    os.kill(first.host.pid, signal.SIGSTOP)
    try:
        with second.host:
            second.until_step(name, 30)
            os.kill(first.host.pid, signal.SIGCONT)
            log = said(first.folder / "daemon.log", FencedError.code)
            assert "experiment.taken_over" in log, log
            assert "Traceback" not in log, log
            assert os.waitstatus_to_exitcode(os.waitpid(first.host.pid, 0)[1]) == FencedError.exit_status
            proven(second, second.until_ended(name))
    finally:
        with suppress(ProcessLookupError):
            os.kill(first.host.pid, signal.SIGCONT)

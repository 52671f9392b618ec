"""Real processes: what a worker started and left running has ended before the next one of its place is started."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import msgspec
import psutil
import pytest
from synthetic.daemon.experiment_files import TEXT
from synthetic.until import poll

from rftd.daemon.config.loading import load_text
from rftd.daemon.run.supervisor.worker_orders import worker_orders
from rftd.ops import limits
from rftd.streams.events.worker import WorkerStarted
from rftd.workers.hosts.executor import UNKNOWN_EXIT, Handle, WorkerOrder
from rftd.workers.hosts.leftovers import MARK, end_all
from rftd.workers.hosts.local import NOT_STARTED, LocalExecutor
from rftd.workers.hosts.membership import this_process

EXPERIMENT = UUID(int=7)
ENGINE = """
import fcntl, os, signal, sys, time
folder, manner = sys.argv[1:3]
if manner in ("deaf", "shared"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if manner == "shared":
    from multiprocessing.shared_memory import SharedMemory
    segment = SharedMemory(create=True, size=4096)
    open(f"{folder}/segment", "w").write(segment.name)
held = open(f"{folder}/device", "a")
fcntl.flock(held, fcntl.LOCK_EX)
open(f"{folder}/engine-{os.getppid()}.tmp", "w").write(str(os.getpid()))
os.rename(f"{folder}/engine-{os.getppid()}.tmp", f"{folder}/engine-{os.getppid()}")
time.sleep(600)
"""
"""Holds what only one can hold, as the processes of an inference engine hold a device, and does not end by itself."""

WORKER = """
import fcntl, os, signal, subprocess, sys, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests under nohup pass it on as ignored
folder, manner = sys.argv[1:3]
try:
    with open(f"{folder}/device", "a") as device:
        fcntl.flock(device, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    sys.exit(5)
bare = {"PATH": os.environ["PATH"]} if manner == "bare" else None
command = [sys.executable, f"{folder}/engine.py", folder, manner]
subprocess.Popen(command, start_new_session=manner == "own_session", env=bare)
time.sleep(600)
"""
"""Ends with 5 if somebody holds the device; else starts its engine, and works."""

DAEMON = """
import json, sys, time
from pathlib import Path
from uuid import UUID
from rftd.workers.hosts.executor import WorkerOrder
from rftd.workers.hosts.local import LocalExecutor
folder, manner = sys.argv[1:3]
executor = LocalExecutor("none", home=folder, command=(sys.executable, f"{folder}/worker.py", folder, manner))
order = WorkerOrder(experiment=UUID(int=7), role="explorer", slot=0, threads=1, log_path=Path(folder) / "log" / "w.log")
handle = executor.start(order)
while handle.pid is None:
    time.sleep(0.01)
print(handle.pid, flush=True)
time.sleep(600)
"""
"""A daemon, as far as it starts a worker."""


SPEAKER = """
import sys
from rftd.daemon.cli.verbs import worker
from rftd.ops.logs import logger

def work(*_):
    for level in ("debug", "info", "warning", "error"):
        getattr(logger(), level)("said")

worker._run_worker = work
worker.command(sys.argv[2:])
"""
"""The real verb, with a line of each level in the place of the work."""


class Machine:
    """One folder, one place in it, and every process that its workers left."""

    def __init__(self, folder: Path, manner: str = "plain") -> None:
        self.folder, self.manner = folder, manner
        (folder / "engine.py").write_text(ENGINE)
        (folder / "worker.py").write_text(WORKER)
        (folder / "daemon.py").write_text(DAEMON)
        self.order = WorkerOrder(
            experiment=EXPERIMENT, role="explorer", slot=0, threads=1, log_path=folder / "log" / "w.log"
        )
        self.executor = self.new_executor()

    def new_executor(self) -> LocalExecutor:
        command = (sys.executable, str(self.folder / "worker.py"), str(self.folder), self.manner)
        return LocalExecutor("none", home=str(self.folder), command=command)

    def started(self) -> tuple[Handle, psutil.Process]:
        """A worker that runs, and its engine."""
        handle = self.executor.start(self.order)
        poll(lambda: handle.pid is not None)
        assert handle.pid is not None
        return handle, self.engine_of(handle.pid)

    def engine_of(self, pid: int) -> psutil.Process:
        poll((self.folder / f"engine-{pid}").exists)
        return psutil.Process(int((self.folder / f"engine-{pid}").read_text()))

    def close(self) -> None:
        for path in self.folder.glob("engine-*"):
            for pid in (int(path.read_text()), int(path.name.partition("-")[2])):
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)


def gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def announced(pid: int) -> WorkerStarted:
    """What the worker of that process wrote when it joined."""
    name = this_process()
    return WorkerStarted(
        worker=UUID(int=pid),
        role="explorer",
        slot=0,
        host=platform.node(),
        pid=pid,
        process_start_s=psutil.Process(pid).create_time(),
        boot_id=name.boot_id,
        pid_namespace=name.pid_namespace,
    )


@pytest.fixture
def machine(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setattr(limits, "LEFTOVER_GRACE_S", 0.2)
    machine = Machine(tmp_path, getattr(request, "param", "plain"))
    try:
        yield machine
    finally:
        machine.close()


MANNERS = pytest.mark.parametrize("machine", ["plain", "own_session", "deaf", "bare"], indirect=True)


@MANNERS
def test_what_a_killed_worker_left_has_ended_before_its_successor_starts(machine: Machine) -> None:
    handle, engine = machine.started()
    assert handle.pid is not None
    assert not gone(engine)
    os.kill(handle.pid, signal.SIGKILL)
    poll(lambda: handle.exit_code() == -signal.SIGKILL)
    after, successor = machine.started()
    assert gone(engine), "the device was free, or the successor would have ended"
    assert not gone(successor), "the device was free, or the successor would have ended"
    assert after.exit_code() is None
    after.kill()
    poll(lambda: after.exit_code() is not None and gone(successor))


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="shared memory is no file here")
@pytest.mark.parametrize("machine", ["shared"], indirect=True)
@pytest.mark.parametrize("by_the_daemon", [False, True], ids=["by_somebody", "by_the_daemon"])
def test_what_a_killed_engine_held_in_shared_memory_is_gone_with_it(machine: Machine, by_the_daemon: bool) -> None:
    handle, engine = machine.started()
    assert handle.pid is not None
    segment = Path("/dev/shm") / (machine.folder / "segment").read_text()
    assert segment.exists()
    if by_the_daemon:
        handle.kill()
    else:
        os.kill(handle.pid, signal.SIGKILL)
    poll(lambda: handle.exit_code() == -signal.SIGKILL)
    # The next order starts once nothing of the last is left; where it holds shared memory, too, that has another name.
    machine.started()
    assert gone(engine)
    assert not segment.exists()


@MANNERS
@pytest.mark.parametrize("adopted", [True, False], ids=["adopted", "killed_while_no_daemon_ran"])
def test_also_when_another_daemon_started_it(machine: Machine, adopted: bool) -> None:
    daemon = subprocess.Popen(
        [sys.executable, "-P", str(machine.folder / "daemon.py"), str(machine.folder), machine.manner],
        stdout=subprocess.PIPE,
    )
    assert daemon.stdout is not None
    pid = int(daemon.stdout.readline())
    engine, started = machine.engine_of(pid), announced(pid)
    daemon.kill()
    daemon.communicate()
    if adopted:
        handle = machine.executor.adopt(machine.order, started)
        assert handle is not None
        assert handle.pid == pid
        assert handle.exit_code() is None
        os.kill(pid, signal.SIGKILL)
        poll(lambda: handle.exit_code() is not None)
    else:
        os.kill(pid, signal.SIGKILL)
        poll(lambda: not machine.executor.lives(started))
        assert machine.executor.adopt(machine.order, started) is None
    after, successor = machine.started()
    assert gone(engine)
    assert not gone(successor)
    assert after.exit_code() is None


def test_a_worker_that_ray_runs_is_left_to_ray(machine: Machine) -> None:
    """What ends an actor by its pid leaves its resources reserved; declared lost, it leaves and gives them back."""
    place = f"rftd/{EXPERIMENT}/explorer/0"
    code = "print(flush=True); input()"
    environ = {**os.environ, MARK: place}
    actor = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ)
    try:
        assert actor.stdout is not None
        actor.stdout.readline()  # Linux shows a program's environment a moment after it was started
        started = announced(actor.pid)
        assert machine.executor.lives(started)
        handle = machine.executor.adopt(machine.order, started)
        assert handle is not None
        assert (handle.pid, handle.exit_code()) == (None, UNKNOWN_EXIT)
        assert "Ray runs it" in handle.reason
        handle.kill()
        assert machine.executor.lives(started) is False, "so it is declared lost"
        assert actor.poll() is None
    finally:
        actor.communicate(b"\n", timeout=60)


@pytest.mark.parametrize("mark", ["", "another/explorer/0@/elsewhere"], ids=["unmarked", "of_another_place"])
def test_a_process_that_a_record_names_and_that_is_no_worker_is_let_be(machine: Machine, mark: str) -> None:
    """Whoever may write on rftd.workers may name any process of the daemon's user."""
    environ = {**os.environ, MARK: mark} if mark else {name: text for name, text in os.environ.items() if name != MARK}
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=environ)
    try:
        assert machine.executor.adopt(machine.order, announced(stranger.pid)) is None
        assert stranger.poll() is None
    finally:
        stranger.communicate(b"\n", timeout=60)


@pytest.mark.parametrize("machine", ["deaf"], indirect=True)
def test_all_processes_are_looked_through_once_and_not_as_long_as_one_lives(machine: Machine) -> None:
    _, engine = machine.started()
    looks = 0

    def look() -> list[psutil.Process]:
        nonlocal looks
        looks += 1
        return [] if gone(engine) else [engine]

    said: list[str] = []
    assert end_all(look, threading.Event().wait, said.append)
    assert looks == 2
    assert gone(engine)
    assert said[0].startswith(f"{engine.pid} (")
    assert said[-1] == ""


@pytest.mark.parametrize("machine", ["deaf"], indirect=True)
def test_what_is_waited_for_is_named(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LEFTOVER_GRACE_S", 1e6)
    handle, engine = machine.started()
    assert handle.pid is not None
    os.kill(handle.pid, signal.SIGKILL)
    poll(lambda: handle.exit_code() is not None)
    successor = machine.executor.start(machine.order)
    poll(lambda: f"{engine.pid} (" in (successor.waits.waiting_for if successor.waits else ""))
    assert successor.pid is None
    assert successor.exit_code() is None
    assert not gone(engine)
    successor.terminate()
    assert successor.exit_code() == UNKNOWN_EXIT, "it was never started"
    engine.kill()
    after, _ = machine.started()
    assert after.exit_code() is None
    assert successor.pid is None


def test_processes_of_others_are_left_alone(machine: Machine) -> None:
    """Processes of another place, of another daemon's folder, and one whose session has a former worker's number."""
    handle, engine = machine.started()
    others = [
        subprocess.Popen(["sleep", "600"], start_new_session=True, env={**os.environ, "RFTD_WORKER": mark})
        for mark in ("", f"{EXPERIMENT}/explorer/1@{machine.folder}", f"{EXPERIMENT}/explorer/0@/elsewhere")
    ]
    fresh = machine.new_executor()
    assert handle.pid is not None
    former = announced(others[0].pid)
    fresh.adopt(machine.order, former)
    clearing = fresh.clear(machine.order)
    assert clearing is not None
    poll(lambda: clearing.exit_code() is not None)
    poll(lambda: gone(engine) and handle.exit_code() is not None)
    assert [each.poll() for each in others] == [None, None, None]
    for each in others:
        each.kill()
        each.wait()


def test_a_start_that_hangs_holds_up_nobody(machine: Machine) -> None:
    """Whoever opens this file for writing waits for a reader, as one waits for a remote disk that is away."""
    machine.order.log_path.parent.mkdir()
    os.mkfifo(machine.order.log_path)
    handle = machine.executor.start(machine.order)
    assert handle.pid is None
    assert handle.exit_code() is None
    assert handle.waits is None
    handle.kill()
    assert handle.exit_code() == UNKNOWN_EXIT
    again = machine.executor.start(machine.order)
    assert again.pid is None
    assert again.exit_code() is None
    reader = os.open(machine.order.log_path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        poll(lambda: again.pid is not None)
        assert handle.pid is None or handle.exit_code() is not None
        again.kill()
        poll(lambda: again.exit_code() is not None)
    finally:
        os.close(reader)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGKILL])
def test_exit_code_of_a_killed_worker_is_its_signal(machine: Machine, number: signal.Signals) -> None:
    """SIGHUP too: its code, -1, once stood for an unknown status."""
    handle, _ = machine.started()
    assert handle.pid is not None
    os.kill(handle.pid, number)
    poll(lambda: handle.exit_code() is not None)
    assert handle.exit_code() == -number
    assert handle.exit_code() != UNKNOWN_EXIT


def test_one_that_cannot_be_started_says_why(machine: Machine) -> None:
    (machine.folder / "log").write_text("no folder")
    handle = machine.executor.start(machine.order)
    poll(lambda: handle.exit_code() is not None)
    assert handle.exit_code() == NOT_STARTED
    assert "cannot start the explorer" in handle.reason


def test_ending_what_is_left_needs_no_turn_of_the_one_that_came_after(machine: Machine) -> None:
    handle, engine = machine.started()
    assert handle.pid is not None
    handle.kill()
    poll(lambda: handle.exit_code() is not None and gone(engine))
    after, successor = machine.started()
    for _ in range(3):
        assert handle.exit_code() == -signal.SIGKILL
    assert after.exit_code() is None
    assert not gone(successor)


@pytest.mark.parametrize(
    ("level", "logged"), [("DEBUG", 4), ("INFO", 3), ("WARNING", 2), ("ERROR", 1), ("CRITICAL", 0)]
)
def test_a_worker_logs_from_the_level_of_its_experiment_on(tmp_path: Path, level: str, logged: int) -> None:
    (tmp_path / "speaker.py").write_text(SPEAKER)
    command = (sys.executable, "-P", str(tmp_path / "speaker.py"))
    executor = LocalExecutor(f"unix:{tmp_path}/log.sock", home=str(tmp_path), command=command)
    overrides = [f"log.level={level.lower()}"]
    spec = load_text(TEXT, "x.yaml", overrides=overrides, environ={}, cwd=tmp_path).spec
    orders = {order.role: order for order in worker_orders(EXPERIMENT, spec, 0)}
    order = msgspec.structs.replace(orders["explorer"], log_path=tmp_path / "log" / "w.log")
    handle = executor.start(order)
    poll(lambda: handle.exit_code() is not None)
    text = order.log_path.read_text()
    assert handle.exit_code() == 0, text
    assert text.count('"said"') == logged

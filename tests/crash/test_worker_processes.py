"""A worker is all of its processes: whichever of them is killed, none is left when the next worker begins."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import psutil
import pytest
from synthetic.until import poll

from rftd.ops import limits
from rftd.streams.events.worker import WorkerStarted
from rftd.workers.hosts.executor import Handle, WorkerOrder
from rftd.workers.hosts.local import LocalExecutor
from rftd.workers.hosts.membership import this_process

KILLS = 2
MEMBERS = ("plain", "grandchild", "deaf", "session", "renamed", "orphan", "hidden")

WORKER = """
import ctypes, fcntl, os, signal, sys, time
folder, first = sys.argv[1], os.getpid()

# Each process holds the device, shared, until it ends: an exclusive lock shows that nobody is left.
try:
    with open(f"{folder}/device", "a") as device:
        fcntl.flock(device, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    sys.exit(5)

def member(name):
    held = open(f"{folder}/device", "a")
    fcntl.flock(held, fcntl.LOCK_SH)
    open(f"{folder}/{first}.{name}.new", "w").write(str(os.getpid()))
    os.rename(f"{folder}/{first}.{name}.new", f"{folder}/{first}.{name}")
    while True:
        time.sleep(600)

def renamed():
    # As a package that sets a process's title does: over its arguments and its environment.
    fields = open("/proc/self/stat").read().rpartition(")")[2].split()
    start, end = int(fields[47]), int(fields[48])
    ctypes.memset(start, 0, end - start)

def child(name, *, deaf=False, session=False, rename=False, orphan=False, inner=None):
    if os.fork():
        return
    if session:
        os.setsid()
    if orphan and os.fork():
        os._exit(0)
    if deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if rename:
        renamed()
    if inner:
        child(inner)
    member(name)

child("plain", inner="grandchild")
child("deaf", deaf=True)
child("session", session=True)
child("renamed", rename=True)
child("orphan", session=True, orphan=True)
child("hidden", deaf=True, session=True, rename=True, orphan=True)
member("first")
"""
"""Ends with 5 if somebody holds the device; else starts what an engine may start, and holds it."""

DAEMON = """
import sys, time
from pathlib import Path
from uuid import UUID
from rftd.workers.hosts.executor import WorkerOrder
from rftd.workers.hosts.local import LocalExecutor
folder = sys.argv[1]
executor = LocalExecutor("none", home=folder, command=(sys.executable, f"{folder}/worker.py", folder))
order = WorkerOrder(experiment=UUID(int=7), role="explorer", slot=0, threads=1, log_path=Path(folder) / "log" / "w.log")
handle = executor.start(order)
while handle.pid is None:
    time.sleep(0.01)
print(handle.pid, flush=True)
time.sleep(600)
"""
"""A daemon, as far as it starts a worker."""


class Family:
    """One worker with all of its processes."""

    def __init__(self, folder: Path, pid: int) -> None:
        self.pid = pid
        paths = [folder / f"{pid}.{name}" for name in ("first", *MEMBERS)]
        poll(lambda: all(path.exists() for path in paths), 30.0)
        self.processes = {path.suffix[1:]: psutil.Process(int(path.read_text())) for path in paths}

    @property
    def alive(self) -> list[str]:
        """The names of those that have not ended."""
        return [name for name, process in self.processes.items() if not _gone(process)]

    def announced(self) -> WorkerStarted:
        """What the worker wrote when it joined."""
        name = this_process()
        return WorkerStarted(
            worker=UUID(int=self.pid),
            role="explorer",
            slot=0,
            host=platform.node(),
            pid=self.pid,
            process_start_s=self.processes["first"].create_time(),
            boot_id=name.boot_id,
            pid_namespace=name.pid_namespace,
        )


def _gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class Machine:
    """One place of one daemon's folder, and every process that was started in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "worker.py").write_text(WORKER)
        (folder / "daemon.py").write_text(DAEMON)
        self.order = WorkerOrder(
            experiment=UUID(int=7), role="explorer", slot=0, threads=1, log_path=folder / "log" / "w.log"
        )
        self.daemons: list[subprocess.Popen[bytes]] = []

    def executor(self) -> LocalExecutor:
        """The launcher of a daemon that was just started."""
        command = (sys.executable, str(self.folder / "worker.py"), str(self.folder))
        return LocalExecutor("none", home=str(self.folder), command=command)

    def started(self, executor: LocalExecutor) -> tuple[Handle, Family]:
        """A worker that runs: it ends at once if anything of another one is left."""
        handle = executor.start(self.order)
        poll(lambda: handle.pid is not None, 30.0)
        assert handle.pid is not None
        return handle, Family(self.folder, handle.pid)

    def daemon_with_worker(self) -> tuple[subprocess.Popen[bytes], Family]:
        """Another daemon, as a process, and the worker that it started."""
        daemon = subprocess.Popen(
            [sys.executable, "-P", str(self.folder / "daemon.py"), str(self.folder)], stdout=subprocess.PIPE
        )
        self.daemons.append(daemon)
        assert daemon.stdout is not None
        return daemon, Family(self.folder, int(daemon.stdout.readline()))

    def close(self) -> None:
        for daemon in self.daemons:
            daemon.kill()
            daemon.communicate()
        for path in self.folder.glob("*.*"):
            if path.suffix[1:] in ("first", *MEMBERS):
                with suppress(OSError):
                    os.kill(int(path.read_text()), signal.SIGKILL)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setattr(limits, "LEFTOVER_GRACE_S", 0.2)
    machine = Machine(tmp_path)
    try:
        yield machine
    finally:
        machine.close()


@pytest.mark.slow
def test_none_is_left_of_a_worker_whose_first_process_is_killed(machine: Machine) -> None:
    executor = machine.executor()
    handle, family = machine.started(executor)
    for _ in range(KILLS):
        assert family.alive == ["first", *MEMBERS]
        os.kill(family.pid, signal.SIGKILL)
        poll(lambda ended=handle: ended.exit_code() == -signal.SIGKILL)  # type: ignore[misc]
        after, successor = machine.started(executor)
        assert family.alive == []
        handle, family = after, successor
    handle.kill()
    poll(lambda: handle.exit_code() is not None and family.alive == [])


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [False, True], ids=["the_daemon_then_the_first", "both_at_once"])
def test_nor_when_an_earlier_daemon_started_it(machine: Machine, at_once: bool) -> None:
    for _ in range(KILLS):
        daemon, family = machine.daemon_with_worker()
        started = family.announced()
        daemon.kill()
        executor = machine.executor()
        if at_once:
            os.kill(family.pid, signal.SIGKILL)
            poll(lambda launcher=executor, worker=started: not launcher.lives(worker))  # type: ignore[misc]
        adopted = executor.adopt(machine.order, started)
        if at_once:
            assert adopted is None
        else:
            assert adopted is not None
            assert family.alive == ["first", *MEMBERS], "a daemon's death is no worker's"
            os.kill(family.pid, signal.SIGKILL)
            poll(lambda ended=adopted: ended.exit_code() is not None)  # type: ignore[misc]
        handle, successor = machine.started(executor)
        assert family.alive == []
        handle.kill()
        poll(lambda ended=handle, those=successor: ended.exit_code() is not None and those.alive == [])  # type: ignore[misc]


UNORDERED = """
import os, subprocess, sys, time
from rftd.workers.hosts.started_here import StartedHere
folder = sys.argv[1]
started = StartedHere()
print(started.end_leftovers_of_dead(), flush=True)
worker = subprocess.Popen([sys.executable, f"{folder}/worker.py", folder])
try:
    names = ("first", "grandchild", "deaf", "session", "orphan")
    while not all(os.path.exists(f"{folder}/{worker.pid}.{name}") for name in names):
        time.sleep(0.01)
    print(worker.pid, flush=True)
    sys.stdin.readline()
    raise RuntimeError("the daemon is away")
finally:
    started.end()
"""
"""A worker that nobody ordered, as far as it starts processes; it fails when it is told to."""


def _unordered(machine: Machine) -> tuple[subprocess.Popen[str], str, Family]:
    environment = {name: value for name, value in os.environ.items() if name != "RFTD_WORKER"}
    command = [sys.executable, "-P", "-c", UNORDERED, str(machine.folder)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    )
    assert process.stdout is not None
    ended = process.stdout.readline().strip()
    return process, ended, Family(machine.folder, int(process.stdout.readline()))


def _fail(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("fail\n")
    process.stdin.close()
    assert process.wait() == 1
    assert process.stdout is not None
    process.stdout.close()


REACHED = ["first", "plain", "grandchild", "deaf", "session", "orphan"]
"""All but those that wrote over their environment, of which only their session or their output says whose they are."""


@pytest.mark.slow
def test_a_worker_that_nobody_ordered_ends_what_it_started_when_it_fails(machine: Machine) -> None:
    process, ended, family = _unordered(machine)
    assert ended == ""
    _fail(process)
    assert [name for name in family.alive if name in REACHED] == []


@pytest.mark.slow
def test_what_one_left_that_was_killed_is_ended_by_the_next_of_any_kind(machine: Machine, tmp_path: Path) -> None:
    process, _, family = _unordered(machine)
    other = tmp_path / "other"
    other.mkdir()
    beside, ended, living = _unordered(Machine(other))
    assert ended == "", "the first one lives"
    process.kill()
    process.wait()
    assert family.alive == ["first", *MEMBERS]
    third = tmp_path / "third"
    third.mkdir()
    after, ended, next_family = _unordered(Machine(third))
    assert str(family.pid) in ended
    assert [name for name in family.alive if name in REACHED] == []
    assert living.alive == ["first", *MEMBERS], "what belongs to a worker that lives is left alone"
    for each in (beside, after):
        _fail(each)
    assert [name for name in (*living.alive, *next_family.alive) if name in REACHED] == []
    for each in (family, living, next_family):
        for member in each.processes.values():
            with suppress(psutil.NoSuchProcess):
                member.kill()

"""The warden of one sandboxed command: a process forked for each run, without rftd's packages.

Reads a job as one line of JSON from standard input, runs the command, and writes a report as JSON. Ends the command and
all its processes at a bound, at the end of its input, at SIGTERM, and at the death of the explorer; removes the run's
folder if the explorer is dead. Imports its neighbours and the standard library alone, so that a fork is small.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import socket
import time
from contextlib import suppress

from rftd.workers.workflows.sandbox import namespaces
from rftd.workers.workflows.sandbox.namespaces import INNER, INNER_UID
from rftd.workers.workflows.sandbox.usage import descendants, disk_of, memory_of

# As mypy reads it; the module typing takes longer to import than everything else here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

    from rftd.workers.workflows.sandbox.namespaces import Job

POLL_INTERVAL_S: Final = 0.02
"""Seconds between two looks at processes and memory."""
DISK_POLL_INTERVAL_S: Final = 0.1
TERM_GRACE_S: Final = 1.0
"""Seconds between SIGTERM and SIGKILL for a command out of time."""


def execute(job: Job, pipes: tuple[int, int], folder: str, uid: int, *, limits: bool) -> None:
    """Becomes the command; writes the reason to its standard error, and ends with 127, if impossible."""
    try:
        os.setsid()
        stdin = job["stdin_fd"] if job["stdin_fd"] >= 0 else os.open("/dev/null", os.O_RDONLY)
        for number, descriptor in enumerate((stdin, *pipes)):
            os.dup2(descriptor, number)
        os.closerange(3, 4096)
        if limits:
            namespaces.limit(job)
            namespaces.drop_rights(uid, reads_all=job["isolation"] == "process")
        # After the change of user, at which the kernel forgets it.
        namespaces.control(namespaces.PDEATHSIG, signal.SIGKILL)
        for number in (signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.chdir(folder)
        os.umask(0o077)
        if job["warm"]:
            from rftd.workers.workflows.sandbox.warm_text import run_text

            namespaces.control(namespaces.DUMPABLE, 1)  # as after the start of a program
            run_text(job)
        program = job["command"][0]
        # Not by execvpe, which would import a module where the standard library may be out of reach.
        folders = [""] if "/" in program else [f"{path}/" for path in job["environ"]["PATH"].split(":")]
        for above in folders:
            with suppress(FileNotFoundError, NotADirectoryError):
                os.execve(above + program, job["command"], job["environ"])  # noqa: S606 - a list of words
        raise FileNotFoundError("there is no such program")
    except BaseException as error:
        os.write(2, f"cannot start {job['command'][0]}: {error}\n".encode())
        os._exit(127)


def init(job: Job, pipes: tuple[int, int], ready: int, status: int, channel: socket.socket) -> None:
    """Is process 1 of the namespaces: builds them, starts the command, reports its end, and so ends all others."""
    problem = ""
    try:
        namespaces.control(namespaces.PDEATHSIG, signal.SIGKILL)
        if os.read(ready, 1) != b"1":  # the warden died
            os._exit(1)
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        namespaces.control(namespaces.PDEATHSIG, signal.SIGKILL)
        # Only now: a warden of another user than root maps users by files that are root's alone for such a process.
        namespaces.control(namespaces.DUMPABLE, 0)
        if not job["network"]:
            opened = namespaces.listeners(job["ports"])
            if opened:
                socket.send_fds(channel, [b"p"], [listener.fileno() for listener in opened])
        channel.close()
        namespaces.build_root(job)
        with suppress(OSError), open("/proc/sys/user/max_user_namespaces", "w") as file:
            file.write("0")  # no further namespaces, and so no new rights, for the command
    except OSError as error:
        problem = str(error)
    if problem:
        os.write(status, json.dumps({"unavailable": problem}).encode())
        os._exit(1)
    command = os.fork()
    if command == 0:
        execute(job, pipes, INNER, job["inner_uid"], limits=True)
    for descriptor in pipes:
        os.close(descriptor)
    while True:
        ended, code = os.wait()
        if ended == command:
            break
    left = sum(name.isdigit() for name in os.listdir("/proc")) - 1
    os.write(status, json.dumps({"exit": os.waitstatus_to_exitcode(code), "left": left}).encode())
    os._exit(0)


def folders_of(job: Job) -> list[str]:
    """Returns the folders writable by the command."""
    return [f"{job['folder']}/{name}" for name in ("work", "tmp")]


class CommandRun:
    """One run of the command, from its start to the report."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.bounds: dict[str, Any] = job["bounds"]
        self.began_s = time.monotonic()
        self.pid = 0
        """Process 1 of the namespaces, or the command itself."""
        self.outputs: dict[int, bytearray] = {}
        self.report: dict[str, Any] = {"bound": "", "exit": None, "left": 0, "output_bytes": 0}
        self.most = {"memory_bytes": 0, "disk_bytes": 0, "processes": 0}
        self.status = -1
        self.disk_at_s = 0.0
        self.kill_at_s: float | None = None
        self.terminated = False

    def start(self) -> None:
        """Starts the command; raises OSError if namespaces are unavailable."""
        out = os.pipe()
        err = os.pipe()
        self.outputs = {out[0]: bytearray(), err[0]: bytearray()}
        self.names = {out[0]: "stdout", err[0]: "stderr"}
        pipes = (out[1], err[1])
        if self.job["isolation"] == "namespaces":
            self._start_namespaces(pipes)
        else:
            namespaces.control(namespaces.CHILD_SUBREAPER, 1)
            self.pid = os.fork()
            if self.pid == 0:
                execute(self.job, pipes, self.job["folder"] + "/work", self.job["uid"], limits=self.job["limits"])
        for descriptor in pipes:
            os.close(descriptor)
        for descriptor in self.outputs:
            os.set_blocking(descriptor, False)

    def _start_namespaces(self, pipes: tuple[int, int]) -> None:
        ready = os.pipe()
        status = os.pipe()
        ours, theirs = socket.socketpair()
        self.pid = namespaces.clone(network=self.job["network"])
        if self.pid == 0:
            os.close(ready[1])
            ours.close()
            init(self.job, pipes, ready[0], status[1], theirs)
        os.close(status[1])
        theirs.close()
        self.status = status[0]
        namespaces.map_users(self.pid, self.job["uid"])
        os.write(ready[1], b"1")
        if self.job["ports"] and not self.job["network"]:
            # Only here: the standard library's threads take milliseconds to import, and most commands need none.
            from rftd.workers.workflows.sandbox.forwarding import forward_ports

            _, descriptors, _, _ = socket.recv_fds(ours, 1, len(self.job["ports"]))
            forward_ports(dict(zip(self.job["ports"], descriptors, strict=False)))
        ours.close()

    def watch(self) -> None:
        """Waits for the command's end, and ends it at a bound."""
        ended = os.pidfd_open(self.pid)
        poll = select.poll()
        # A child forked by the explorer without exec would keep the input open: its death counts as well.
        parent = -1
        with suppress(OSError):
            parent = os.pidfd_open(self.job["parent"])
            poll.register(parent, select.POLLIN)
        for descriptor in (*self.outputs, 0, ended):
            poll.register(descriptor, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll(POLL_INTERVAL_S * 1000):
                if descriptor == ended:
                    return
                if descriptor in self.outputs:
                    if not self._read(descriptor):
                        poll.unregister(descriptor)
                elif descriptor == parent or not os.read(0, 4096):
                    self.end("cancelled")
                    poll.unregister(descriptor)
            self._look()

    def _read(self, descriptor: int) -> bool:
        """Keeps the end of an output; False at its end."""
        with suppress(BlockingIOError):
            data = os.read(descriptor, 1 << 16)
            if not data:
                return False
            self.report["output_bytes"] += len(data)
            kept = self.outputs[descriptor]
            kept += data
            if len(kept) > 2 * self.job["tail_bytes"]:
                del kept[: -self.job["tail_bytes"]]
            if self.report["output_bytes"] > self.bounds["output_bytes"]:
                self.end("output")
        return True

    def _look(self) -> None:
        """Compares processes, memory, time and disk with their bounds."""
        now_s = time.monotonic()
        if self.kill_at_s is not None:
            if now_s >= self.kill_at_s:
                self._kill()
            return
        if self.terminated:
            self.end("cancelled")
            return
        if now_s - self.began_s > self.bounds["wall_s"]:
            self.report["bound"] = "time"
            self.kill_at_s = now_s + TERM_GRACE_S
            for pid in self._commands():
                with suppress(OSError):
                    os.killpg(pid, signal.SIGTERM)
            return
        family = self._family() if self.job["limits"] else []
        pids = [pid for pid, _ in family]
        self._note("processes", sum(threads for _, threads in family))
        memory_bytes = memory_of(pids)
        if memory_bytes > self.bounds["memory_bytes"]:
            memory_bytes = min(memory_bytes, memory_of(pids, shared_once=True) or memory_bytes)
        self._note("memory_bytes", memory_bytes)
        if now_s >= self.disk_at_s:
            self._note("disk_bytes", self._disk(pids))
            looked_s = time.monotonic() - now_s
            self.disk_at_s = now_s + max(DISK_POLL_INTERVAL_S, 10 * looked_s)

    def _disk(self, pids: list[int]) -> int:
        before = int(self.job["disk_before"])
        return disk_of(folders_of(self.job), pids) - before

    def _note(self, name: str, amount: int) -> None:
        self.most[name] = max(self.most[name], amount)
        if amount > self.bounds[name]:
            self.end(name.partition("_")[0])

    def _commands(self) -> list[int]:
        if self.job["isolation"] != "namespaces":
            return [self.pid]
        with suppress(OSError), open(f"/proc/{self.pid}/task/{self.pid}/children") as file:
            return [int(word) for word in file.read().split()][:1]
        return []

    def _family(self) -> list[tuple[int, int]]:
        return list(descendants(self.pid if self.job["isolation"] == "namespaces" else os.getpid()))

    def end(self, reason: str) -> None:
        """Kills the command with all its processes; the first reason counts."""
        if not self.report["bound"]:
            self.report["bound"] = reason
        self.kill_at_s = time.monotonic()
        self._kill()

    def _kill(self) -> None:
        if self.job["isolation"] == "namespaces":
            with suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)  # the kernel ends everything else within
            return
        for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first: what is killed cannot fork meanwhile
            for pid, _ in self._family():
                with suppress(OSError):
                    os.kill(pid, number)

    def collect(self) -> dict[str, Any]:
        """Returns the report, once nothing of the command runs."""
        if self.job["isolation"] == "namespaces":
            with suppress(ValueError):
                self.report |= json.loads(os.read(self.status, 65536) or b"{}")
            os.waitpid(self.pid, 0)
        else:
            _, code = os.waitpid(self.pid, 0)
            self.report["exit"] = os.waitstatus_to_exitcode(code)
            self.report["left"] = len(self._family())
            while self._family():
                self._kill()
                with suppress(ChildProcessError):
                    os.waitpid(-1, 0)
        for descriptor in self.outputs:
            before = -1
            while before != self.report["output_bytes"]:
                before = self.report["output_bytes"]
                self._read(descriptor)
            text = self.outputs[descriptor][-self.job["tail_bytes"] :].decode("utf-8", "replace")
            self.report[self.names[descriptor]] = text
        if self.report["exit"] is None:
            self.report["exit"] = -signal.SIGKILL
        if not self.report["bound"]:
            self._note("disk_bytes", self._disk([]))
            if self.report["exit"] == -signal.SIGXCPU:
                self.report["bound"] = "cpu"
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        most_bytes = max(self.most["memory_bytes"], used.ru_maxrss * 1024 if self.job["limits"] else 0)
        self.report |= self.most | {"memory_bytes": most_bytes, "cpu_s": used.ru_utime + used.ru_stime}
        return self.report | {"wall_s": time.monotonic() - self.began_s, "isolation": self.job["isolation"]}


def run(job: Job) -> dict[str, Any]:
    """Runs a job, and returns its report; `unavailable` says why the isolation is impossible."""
    whole = CommandRun(job)
    signal.signal(signal.SIGTERM, lambda *_: setattr(whole, "terminated", True))
    try:
        whole.start()
    except OSError as error:
        if whole.pid > 0:
            os.kill(whole.pid, signal.SIGKILL)
        return {"unavailable": str(error)}
    whole.watch()
    report = whole.collect()
    if job["after"]:
        import subprocess

        ended = [subprocess.run(words, env=job["environ"], capture_output=True, text=True) for words in job["after"]]
        report["after"] = [process.stdout[-1000:] for process in ended]
    return report


def ended(pid: int) -> bool:
    """True if a process has ended, even if nobody has waited for the process."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def main() -> None:
    """Reads the job, runs it, and reports."""
    with open(0, "rb", closefd=False) as lines:
        job = json.loads(lines.readline())
    job["stdin_fd"] = os.open(job["folder"] + "/input", os.O_RDONLY) if job["input"] else -1
    job["inner_uid"] = INNER_UID if os.geteuid() == 0 else -1
    job["disk_before"] = disk_of(folders_of(job), [])
    report = run(job)
    if ended(job["parent"]):
        import shutil

        shutil.rmtree(job["folder"], ignore_errors=True)
    with suppress(OSError):
        os.write(1, json.dumps(report).encode() + b"\n")

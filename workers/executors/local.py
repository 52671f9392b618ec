"""Worker processes of this machine, each in a session of its own, so that they outlive the daemon's terminal."""

from __future__ import annotations

import asyncio
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Sequence

import psutil

from rftd.ops.durable import make_durable_folder
from rftd.ops.errors import WorkError
from rftd.ops.processors import threads_of
from rftd.streams.events.worker import WorkerStarted
from rftd.workers.executors.executor import Handle, WorkerOrder


class StartedProcess:
    """A child of this process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_code(self) -> int | None:
        return self._process.poll()

    def terminate(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()


class AdoptedProcess:
    """A process that an earlier daemon started; known by pid and start time, so a reused pid is not taken for it."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_code(self) -> int | None:
        alive = self._process.is_running() and self._process.status() != psutil.STATUS_ZOMBIE
        return None if alive else -1

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self.exit_code() is None:
            self._process.send_signal(number)


class LocalExecutor:
    """Starts `rftd worker ROLE` as processes of this machine."""

    def __init__(self, log_url: str, command: Sequence[str] = (sys.executable, "-P", "-m", "rftd.daemon")) -> None:
        self._log_url = log_url
        self._command = tuple(command)

    async def start(self, order: WorkerOrder) -> Handle:
        arguments = [*self._command, "worker", order.role, "--log", self._log_url]
        arguments += ["--experiment", str(order.experiment)]
        if order.spine_offset:
            arguments += ["--spine-offset", str(order.spine_offset)]
        if order.slot >= 0:
            arguments += ["--slot", str(order.slot)]
        threads = str(threads_of(order.threads))
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        environment.setdefault("TOKENIZERS_PARALLELISM", "false")

        def spawn() -> subprocess.Popen[bytes]:
            make_durable_folder(order.log_path.parent)  # in the job's folder, which it makes
            with order.log_path.open("ab") as output:
                return subprocess.Popen(
                    arguments,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    env=environment,
                )

        try:
            return StartedProcess(await asyncio.to_thread(spawn))
        except OSError as error:
            raise WorkError(f"cannot start a {order.role}: {error}", where=str(order.log_path)) from error

    def adopt(self, started: WorkerStarted) -> Handle | None:
        if started.host != platform.node():
            return None
        try:
            process = psutil.Process(started.pid)
            if abs(process.create_time() - started.process_start_s) > 0.02:
                return None
        except psutil.Error:
            return None
        adopted = AdoptedProcess(process)
        return adopted if adopted.exit_code() is None else None

"""A program's private daemon: started on a free port, restarted after a crash, drained at the end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import httpx
import msgspec

from rftd.daemon.cli.living_wait import LivingWait, say_beside
from rftd.daemon.cli.settings import Settings
from rftd.daemon.http.client.address import find_address, trusted_by
from rftd.daemon.serve.data_folder import DataFolder, Endpoint
from rftd.ops.decoding import json_decoder
from rftd.ops.errors import UnreachableError
from rftd.ops.health import Verdict

ANSWER_S: Final = 10.0
"""Time-out of one readiness check, then repeated."""
STOP_S: Final = 120.0
"""Time for the daemon to drain, much longer than its workers' time, so that no worker is left behind."""
_POLL_S: Final = 0.05
"""Seconds between two readiness checks."""


class DaemonHost:
    """Runs `rftd serve` on `data_folder` while the block runs."""

    def __init__(
        self,
        data_folder: Path,
        log_path: Path,
        options: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        *,
        say: Callable[[str], None] = say_beside,
        check: Callable[[], None] = lambda: None,
        tied: bool = False,
    ) -> None:
        """`options` are passed to `rftd serve`, `environ` is added to its environment.

        With `tied`, the daemon also ends with this process, even with a killed one. `say` reports a long wait to the
        user; `check` raises if a server needed by the daemon has ended.
        """
        self._say = say
        self._check = check
        self._environ = {**os.environ, **(environ or {})}
        """Environment of the daemon's process."""
        self._folder = DataFolder(data_folder)
        """The daemon's data folder."""
        self._log_path = log_path
        self._options = tuple(options)
        """Further options of `rftd serve`."""
        self._tied = tied
        self._process: subprocess.Popen[bytes] | None = None
        """The daemon's process; None before the first start."""
        self.restarts = 0
        """Number of restarts after a crash."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Drains the daemon; `tend` restarts it."""
        assert self._process is not None
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.terminate()
        try:
            self._process.wait(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def pid(self) -> int:
        """Process id of the daemon."""
        assert self._process is not None
        return self._process.pid

    @property
    def url(self) -> str:
        """Current address of the daemon; different after a restart."""
        return json_decoder(Endpoint).decode(self._folder.endpoint.read_bytes()).url

    @property
    def settings(self) -> Settings:
        """Settings of a client finding address and token in the daemon's folder."""
        return Settings(data=str(self._folder.root))

    @property
    def headers(self) -> dict[str, str]:
        """Headers of an owner's request to the daemon. Raises NoDaemonError before the first answer."""
        return find_address(self.settings, {}).headers

    def tend(self) -> None:
        """Restarts the daemon if it has died.

        Raises UnreachableError if the daemon dies while starting, or if a server needed by it has ended.
        """
        assert self._process is not None
        self._check()
        if self._process.poll() is not None:
            self.restarts += 1
            self.start()

    def start(self) -> None:
        """Starts the daemon, and returns once it answers. Raises UnreachableError."""
        # Deleted first: the previous daemon's file names a port possibly used by another program now.
        self._folder.endpoint.unlink(missing_ok=True)
        arguments = [sys.executable, "-P", "-m", "rftd.daemon", "serve", "--data", str(self._folder.root)]
        with self._log_path.open("ab") as output:
            self._process = subprocess.Popen(
                [*arguments, "--port", "0", *(["--end-with-stdin"] if self._tied else []), *self._options],
                stdin=subprocess.PIPE if self._tied else subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environ,
            )
        try:
            self._wait_ready()
        except BaseException:
            self.stop()
            raise

    def _wait_ready(self) -> None:
        """Returns once the daemon accepts commands. Raises UnreachableError if the daemon, or a server needed by it,
        has ended.
        """
        wait = LivingWait("the daemon has not been ready", say=self._say)
        while (missing := self._unready_reason()) is not None:
            self.check()
            wait.goes_on(self.pid, missing)
            time.sleep(_POLL_S)

    def check(self) -> None:
        """Raises UnreachableError if the daemon, or a server needed by it, has ended."""
        assert self._process is not None
        if self._process.poll() is not None:
            raise UnreachableError(
                f"the daemon ended with status {self._process.returncode}",
                where=str(self._log_path),
                fix="see the end of its log",
            )
        self._check()

    def _unready_reason(self) -> str | None:
        """Returns the reason why the daemon does not accept commands yet, empty if unknown; None if it accepts them."""
        try:
            url = self.url
            answer = httpx.get(f"{url}/readyz?verbose", timeout=ANSWER_S, verify=trusted_by(url), trust_env=False)
            return _failing_checks(answer)
        except httpx.TimeoutException:
            return f"no answer within {ANSWER_S:g} s"
        except (OSError, httpx.HTTPError, msgspec.MsgspecError, UnicodeDecodeError):
            return ""


def _failing_checks(answer: httpx.Response) -> str | None:
    """Returns the failing checks of a readiness answer in one line; None if commands are accepted, even if the disk is
    nearly full.
    """
    if answer.is_success:
        return None
    failing = [check for check in json_decoder(Verdict).decode(answer.content).checks if not check.ok]
    if {check.name for check in failing} == {"disk"}:
        return None
    return "; ".join(f"{check.name}: {check.reason}" if check.reason else check.name for check in failing)

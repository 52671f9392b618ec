"""A daemon of the demo's own: started on a free port, restarted if it dies, drained at the end (rule 13)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import msgspec

from rftd.daemon.client.address import find_address, trusted_by
from rftd.daemon.data_folder import DataFolder, Endpoint
from rftd.daemon.settings import Settings
from rftd.ops.decoding import json_decoder
from rftd.ops.errors import UnreachableError
from rftd.ops.health import Verdict

READY_TIMEOUT_S = 240.0
"""The daemon says at once if it cannot start; what takes longer is a machine with much else to do."""


class DaemonHost:
    """Runs `rftd serve` on `data` while the block runs."""

    def __init__(
        self, data: Path, log_path: Path, options: Sequence[str] = (), environ: Mapping[str, str] | None = None
    ) -> None:
        """`options` go to `rftd serve`, `environ` is added to its environment."""
        self._environ = {**os.environ, **(environ or {})}
        self._folder = DataFolder(data)
        self._log_path = log_path
        self._options = tuple(options)
        self._process: subprocess.Popen[bytes] | None = None
        self.restarts = 0

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Drains the daemon; `tend` starts it again."""
        assert self._process is not None
        self._process.terminate()
        try:
            # Longer than its workers have to drain, so that none is left behind.
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def pid(self) -> int:
        """The process id of the daemon."""
        assert self._process is not None
        return self._process.pid

    @property
    def url(self) -> str:
        """The address at which the daemon answers now; after a restart it is another."""
        return json_decoder(Endpoint).decode(self._folder.endpoint.read_bytes()).url

    @property
    def settings(self) -> Settings:
        """The settings of a client of the daemon, which finds address and token in its folder."""
        return Settings(data=str(self._folder.root))

    @property
    def headers(self) -> dict[str, str]:
        """The headers of a request to the daemon as its owner. Raises NoDaemonError before it has answered."""
        return find_address(self.settings, {}).headers

    def tend(self) -> None:
        """Starts the daemon again if it has died."""
        assert self._process is not None
        if self._process.poll() is not None:
            self.restarts += 1
            self._start()

    def _start(self) -> None:
        # Removed first: the file of the daemon before names a port that may be anybody's by now.
        self._folder.endpoint.unlink(missing_ok=True)
        arguments = [sys.executable, "-P", "-m", "rftd.daemon", "serve", "--data", str(self._folder.root)]
        with self._log_path.open("ab") as output:
            self._process = subprocess.Popen(
                [*arguments, "--port", "0", *self._options],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environ,
            )
        deadline_s = time.monotonic() + READY_TIMEOUT_S
        while not self._ready():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                raise UnreachableError(
                    "the demo's daemon did not start", where=str(self._log_path), fix="see the end of its log"
                )
            time.sleep(0.05)

    def _ready(self) -> bool:
        try:
            url = self.url
            return _serves(httpx.get(f"{url}/readyz?verbose", timeout=5.0, verify=trusted_by(url), trust_env=False))
        except (OSError, httpx.HTTPError, msgspec.MsgspecError, UnicodeDecodeError):
            return False


def _serves(answer: httpx.Response) -> bool:
    """True if commands are taken; a daemon that only lacks space says so to whoever asks it."""
    if answer.is_success:
        return True
    checks = json_decoder(Verdict).decode(answer.content).checks
    return {each.name for each in checks if not each.ok} == {"disk"}

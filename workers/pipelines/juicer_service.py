"""`JuicerService`: Data-Juicer over HTTP and Arrow, started here if so configured; absences are waited for.

The protocol is that of Trinity-RFT's service: `/health`, `/create`, `/process_experience`, `/close`.
"""

from __future__ import annotations

import io
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Final

import httpx
import msgspec

from rftd.ops.errors import NotInstalledError, PipelineError, explain
from rftd.ops.machine_environment import machine_environment
from rftd.streams.spec.task_pipeline import JuicerSpec

SERVER: Final = Path(__file__).with_name("juicer_server.py")
"""The service's program, run by a Python with Data-Juicer."""
STATS: Final = "__dj__stats__"
"""Column of an answer with each row's figures."""
_UNAVAILABLE_TIMEOUT_S: Final = 180.0
"""Longest time, in seconds, for which one request is repeated while the service does not answer."""
_PAUSE_S: Final = 1.0
"""Seconds between two attempts of a request, and for closing a session."""
_ANSWER_S: Final = 3600.0
"""Longest wait for one answer, in seconds: operators may ask a model about each row."""
_UNAVAILABLE_STATUSES: Final = frozenset({502, 503, 504})
_LOST: Final = 404
"""Status for a session unknown to a restarted service."""


class JuicerService:
    """One session with the service, for a fixed list of operators. Used by one thread at a time."""

    def __init__(
        self,
        spec: JuicerSpec,
        operators: Sequence[Mapping[str, Any]],
        *,
        processes: int = 4,
        environ: Mapping[str, str],
        client: httpx.Client | None = None,
        now: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """`operators` are Data-Juicer's own, `{name: arguments}`; `environ` are this process's variables."""
        self._spec = spec
        self._creation = {"pipeline_type": "experience", "operators": list(operators), "np": processes}
        self._environ = environ
        self._client = client or httpx.Client(timeout=_ANSWER_S)
        self._now = now
        self._pause = pause
        self._url = spec.server_url.rstrip("/")
        self._session = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._turn = Lock()
        self.release = ""
        """Release of Data-Juicer, as told by the service; empty if untold."""

    def process(self, rows: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, float]]:
        """Returns the rows answered by the service, and the service's figures. Raises PipelineError. Blocks."""
        body = _arrow_of(rows)
        with self._turn:
            for last in (False, True):
                session = self._session or self._created()
                files = {"arrow_data": ("dataset.arrow", body, "application/octet-stream")}
                answer = self._asked("/process_experience", data={"session_id": session}, files=files)
                if answer.status_code != _LOST or last:
                    break
                self._session = ""  # the service was started again
        _check(answer)
        try:
            figures = msgspec.json.decode(answer.headers.get("X-Metrics") or "{}")
            return _rows_of(answer.content), {str(name): float(figure) for name, figure in figures.items()}
        except Exception as error:  # pyarrow's errors have no common class
            raise PipelineError(f"Data-Juicer at {self._url} answered with no rows: {explain(error)}") from error

    def close(self) -> None:
        """Ends the session, and a service started here."""
        try:
            if self._session:
                self._client.post(f"{self._url}/close", json={"session_id": self._session}, timeout=_PAUSE_S)
        except httpx.HTTPError:
            pass
        self._session = ""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _created(self) -> str:
        if self._spec.auto_start and (self._process is None or self._process.poll() is not None):
            self._start()
        health = self._asked("/health", post=False)
        _check(health)
        self._check_release(health)
        answer = self._asked("/create", json=self._creation)
        _check(answer)
        self._session = str(answer.json().get("session_id") or "")
        if not self._session:
            raise PipelineError(f"Data-Juicer at {self._url} opened no session")
        return self._session

    def _check_release(self, health: httpx.Response) -> None:
        """Raises PipelineError for a release other than the configured one, or than that of an earlier session."""
        try:
            release = str(health.json().get("release") or "")
        except ValueError:
            release = ""
        expected = self._spec.release or self.release
        if expected and release != expected:
            raise PipelineError(
                f"Data-Juicer at {self._url} is of release {release or 'unknown'}, not "
                f"{expected}: its answers may differ"
            )
        self.release = release

    def _asked(self, path: str, *, post: bool = True, **arguments: Any) -> httpx.Response:
        """Repeats a request until the service answers. Raises PipelineError if the service ended, or was away for
        `_UNAVAILABLE_TIMEOUT_S`.
        """
        began_s = self._now()
        while True:
            try:
                url = f"{self._url}{path}"
                answer = self._client.post(url, **arguments) if post else self._client.get(url)
                if answer.status_code not in _UNAVAILABLE_STATUSES:
                    return answer
                reason = f"HTTP {answer.status_code}"
            except httpx.HTTPError as error:
                reason = explain(error)
            if self._process is not None and self._process.poll() is not None:
                raise PipelineError(f"Data-Juicer ended with status {self._process.returncode}")
            if self._now() - began_s >= _UNAVAILABLE_TIMEOUT_S:
                raise PipelineError(
                    f"Data-Juicer at {self._url} has not answered for {_UNAVAILABLE_TIMEOUT_S:g} s: {reason}"
                )
            self._pause(_PAUSE_S)

    def _start(self) -> None:
        python = self._spec.python or sys.executable
        environ = machine_environment(self._environ) | {"PIP_NO_INDEX": "1", "UV_OFFLINE": "1", "HF_HUB_OFFLINE": "1"}
        try:
            self._process = subprocess.Popen(
                [python, "-P", str(SERVER), str(self._spec.port)],
                stdin=subprocess.PIPE,  # closed with this process, and the service ends
                stdout=subprocess.PIPE,
                env=environ,
            )
        except OSError as error:
            raise PipelineError(f"{python} cannot be started: {error.strerror}") from error
        assert self._process.stdout is not None
        line = self._process.stdout.readline().split()
        if len(line) != 2 or line[0] != b"ready":
            self._process.kill()
            status = self._process.wait()
            raise PipelineError(
                f"Data-Juicer of {python} did not start, and ended with status {status}: "
                "is py-data-juicer installed there?"
            )
        self._url = f"http://127.0.0.1:{int(line[1])}"
        self._session = ""


def _check(answer: httpx.Response) -> None:
    """Raises PipelineError for an error answered by the service, with the service's own reason."""
    if answer.is_success:
        return
    try:
        reason = str(answer.json().get("error"))
    except ValueError:
        reason = answer.text[:200]
    raise PipelineError(f"Data-Juicer refused with HTTP {answer.status_code}: {reason}")


def _arrow_of(rows: Sequence[Mapping[str, Any]]) -> bytes:
    arrow = _pyarrow()
    table = arrow.Table.from_pylist([dict(row) for row in rows])
    stream = io.BytesIO()
    with arrow.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    return stream.getvalue()


def _rows_of(content: bytes) -> list[dict[str, Any]]:
    with _pyarrow().ipc.open_stream(content) as reader:
        rows: list[dict[str, Any]] = reader.read_all().to_pylist()
        return rows


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError as error:
        raise NotInstalledError("Data-Juicer needs pyarrow", fix="pip install 'rftd[data]'") from error
    return pyarrow


def figures_of(row: Mapping[str, Any]) -> dict[str, float]:
    """Returns the numeric figures of an answered row."""
    stats = row.get(STATS)
    if isinstance(stats, str):  # releases from 1.6 on write JSON
        stats = msgspec.json.decode(stats)
    numbers = stats.items() if isinstance(stats, Mapping) else ()
    return {
        str(name): float(figure)
        for name, figure in numbers
        if isinstance(figure, int | float) and not isinstance(figure, bool)
    }

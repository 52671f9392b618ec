"""`Guest`: a worker inside a foreign process, on a separate thread and event loop.

A guest sets no signal handler, needs no main thread and accepts any event loop: an actor of a cluster can run a guest,
and stop it from another thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from uuid import UUID

import msgspec

from rftd.ops.clock import SystemClock
from rftd.ops.errors import RftdError, explain
from rftd.ops.ids import SystemIds
from rftd.ops.logs import Logger
from rftd.ops.tracing.trace_options import TraceOptions, tracing
from rftd.ops.tracing.tracer import Tracer
from rftd.streams.log.backend import backend_of, log_url
from rftd.workers.process import run_explorer, run_trainer


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """Identity and work of one worker."""

    worker: UUID
    experiment: UUID
    role: str
    """`explorer` or `trainer`."""
    slot: int
    """-1 for a trainer."""
    log_url: str
    spine_offset: int = 0
    traces: TraceOptions | None = None
    """The receiver of its spans; None: no tracing."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a guest."""

    code: int
    """The exit status of an equivalent process; 0: it drained cleanly."""
    reason: str = ""


class Guest:
    """Works from `begin` on, until the experiment ends or a stop is requested."""

    def __init__(
        self,
        assignment: Assignment,
        logger: Logger,
        *,
        make_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
    ) -> None:
        """`make_loop` creates the event loop."""
        self._assignment = assignment
        self._logger = logger
        self._loop = make_loop()
        self._stop = asyncio.Event()
        self._over = threading.Event()
        self._outcome = Outcome(code=0)
        self._thread = threading.Thread(target=self._run, name=f"guest-{assignment.role}", daemon=True)

    def begin(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Asks the guest to drain and leave; callable from any thread, repeatedly."""
        if not self._over.is_set():
            self._loop.call_soon_threadsafe(self._stop.set)

    def outcome(self, timeout_s: float | None = None) -> Outcome | None:
        """Returns the outcome, once ended; None if still running after `timeout_s`. Without a time-out, waits for the
        end.
        """
        return self._outcome if self._over.wait(timeout_s) else None

    def _run(self) -> None:
        assignment = self._assignment
        try:
            with (
                tracing(assignment.traces, assignment.role, clock=SystemClock(), logger=self._logger) as tracer,
                asyncio.Runner(loop_factory=lambda: self._loop) as runner,
            ):
                runner.run(self._until_stopped(tracer))
        except RftdError as error:
            self._outcome = Outcome(code=error.exit_status, reason=f"{error.code}: {explain(error)}")
        except BaseException as error:  # any error at all becomes the outcome
            self._logger.error("worker.crashed", exc_info=error)
            self._outcome = Outcome(code=1, reason=explain(error))
        finally:
            self._over.set()

    async def _until_stopped(self, tracer: Tracer | None) -> None:
        assignment = self._assignment
        clock = SystemClock()
        ids = SystemIds(clock)
        url = log_url(assignment.log_url)
        backend = backend_of(url)
        opening = asyncio.ensure_future(backend.open(backend.checked(url.text), clock=clock, ids=ids))
        stopping = asyncio.ensure_future(self._stop.wait())
        try:
            # An unresponsive log must not block a worker no longer wanted.
            await asyncio.wait((opening, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not opening.done():
                return
            log = opening.result()
        finally:
            opening.cancel()
            stopping.cancel()
        try:
            work = run_trainer if assignment.role == "trainer" else partial(run_explorer, slot=assignment.slot)
            await work(
                log,
                assignment.experiment,
                stop=self._stop,
                clock=clock,
                ids=ids,
                logger=self._logger,
                spine_offset=assignment.spine_offset,
                worker=assignment.worker,
                tracer=tracer,
            )
        finally:
            await log.close()

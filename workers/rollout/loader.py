"""`WeightsLoader`: loads the weights published in the log into the rollouts' engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext

from rftd.ops.errors import RftdError, WeightsElsewhereError
from rftd.ops.logs import Logger
from rftd.streams.events.weights import WeightsActivated, WeightsPublished
from rftd.streams.folds.sync_failure import SyncFailure
from rftd.streams.spec.schedule import has_windows
from rftd.workers.generation.engine import RolloutEngine, TransferTimed, check_lives
from rftd.workers.hosts.membership import Membership
from rftd.workers.rollout.outbox import Outbox
from rftd.workers.rollout.rollout_traces import RolloutTraces
from rftd.workers.rollout.version_gate import VersionGate
from rftd.workers.rollout.view import ExplorerView
from rftd.workers.weights.channel import as_ref

WEIGHTS_RETRY_S = 0.2
"""Pause in seconds after weights could not be loaded."""
EVAL_LINGER_S = 0.5
"""Seconds for which a shared engine keeps an evaluation's weights while further rows of the evaluation are to be
leased.
"""


class WeightsLoader:
    """Loads published weights when the gate permits, and reports the loaded version to the gate and the log."""

    def __init__(
        self,
        member: Membership,
        view: ExplorerView,
        gate: VersionGate,
        outbox: Outbox,
        log: Logger,
        *,
        device: Callable[[], AbstractAsyncContextManager[None]],
        traces: RolloutTraces | None = None,
    ) -> None:
        """`device` is entered during loading; `traces` opens a span for each load."""
        self._traces = traces
        self._member = member
        self._view = view
        self._gate = gate
        self._outbox = outbox
        self._log = log
        self._device = device
        self._lingers_until_s = 0.0
        """Monotonic time until which an evaluation's weights are kept."""
        self.loading = False
        """True while the engine loads."""
        self.failed = False
        """True after a failed load, until the next successful one."""

    def linger(self) -> None:
        """Keeps the loaded weights for `EVAL_LINGER_S` seconds, in case the next lease of the evaluation needs them."""
        self._lingers_until_s = self._member.clock.monotonic_s() + EVAL_LINGER_S

    async def run(self, engine: RolloutEngine) -> None:
        """Loads new weights until cancelled: those an evaluation waits for, else the newest, or, with windows, those
        rollouts wait for.
        """
        while True:
            await self._stand_in(engine)
            target = self._due_weights(engine)
            if target is None:
                await self._gate.wait_change(1.0)
            elif not await self._load(engine, target):
                await self._member.clock.sleep(WEIGHTS_RETRY_S)

    async def _stand_in(self, engine: RolloutEngine) -> None:
        """Lets rollouts begin that need a lost version, if the weights in use serve in its place."""
        awaited = self._gate.awaited_by_pinned
        weights = self._view.weights
        if awaited in weights.lost:
            target = weights.of_version(awaited, self._view.spine)
            if target is not None and (target.version, target.generation) == engine.version:
                self._gate.stand_in(awaited)

    def _due_weights(self, engine: RolloutEngine) -> WeightsPublished | None:
        """Returns the weights to load now; None if the ones in use are right or must stay."""
        spine = self._view.spine
        weights = self._view.weights
        if spine.spec is None or spine.stage < 0 or self._gate.held:
            return None
        awaited = self._gate.awaited_by_evaluation
        if awaited == self._gate.weights:
            return None  # the evaluation waiting for them begins
        if awaited is not None:
            return weights.published.get(awaited) if self._gate.may_go_to(awaited[0]) else None
        if self._member.clock.monotonic_s() < self._lingers_until_s:
            return None
        if not has_windows(spine.stage_spec().synchronizer):
            target = weights.newest(spine)
        elif (pinned_version := self._gate.awaited_by_pinned) is not None:
            target = weights.of_version(pinned_version, spine)
        elif engine.version[0] < 0:
            target = weights.newest(spine)
        else:
            return None
        if target is None or (target.version, target.generation) == engine.version:
            return None
        return target

    async def _load(self, engine: RolloutEngine, target: WeightsPublished) -> bool:
        """Loads weights within a span; False on failure."""
        with nullcontext() if self._traces is None else self._traces.loading(target) as span:
            with self._gate.changing():  # entered without an await since `_due_weights`: nothing began in between
                error = await self._load_or_error(engine, target)
            if error is not None and span is not None:
                span.fail(error)
        return error is None

    async def _load_or_error(self, engine: RolloutEngine, target: WeightsPublished) -> RftdError | None:
        """Loads the weights; returns the error on failure."""
        began_s = self._member.clock.monotonic_s()
        spec = self._view.spine.spec
        assert spec is not None  # no load is due before it
        try:
            self.loading = True
            async with self._device():
                checksum = await engine.load_weights(await asyncio.to_thread(as_ref, target, spec))
                loaded_s = self._member.clock.monotonic_s()
        except WeightsElsewhereError:
            raise
        except RftdError as error:
            check_lives(engine)
            self._log.warning("weights.load_failed", version=target.version, error=error.what)
            self.failed = True
            self._member.pulse.sync_failures[SyncFailure.LOAD] += 1
            self._gate.refuse((target.version, target.generation), error)
            return error
        finally:
            self.loading = False
        self.failed = False
        self._member.pulse.version = target.version
        # The engine has the weights already, so rollouts may begin before the log records it.
        self._gate.set_weights(target.version, target.generation)
        now_s = self._member.clock.monotonic_s()
        activated = WeightsActivated(
            worker=self._member.id,
            version=target.version,
            generation=target.generation,
            manifest=target.manifest,
            checksum=checksum,
            duration_s=now_s - began_s,
            transfer_s=engine.transfer_s if isinstance(engine, TransferTimed) else 0.0,
            resume_s=now_s - loaded_s,
        )
        await self._outbox.put([self._member.writer.draft(activated, experiment=self._member.experiment)])
        return None

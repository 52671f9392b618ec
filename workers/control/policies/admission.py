"""Policies pacing by admission alone: nothing is retired as stale, and a slow rollout may exceed the bound."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import nsmallest
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from rftd.streams.spec.schedule import explorer_interval, trainer_interval
from rftd.streams.spec.sections import Synchronizer
from rftd.streams.spec.spec import PolicySpec
from rftd.workers.control.policies.buffer_index import BufferIndex
from rftd.workers.control.policies.paced import Paced, PolicyArguments, PolicyPage, read_args
from rftd.workers.control.policies.policy import PolicyView, Retirement

if TYPE_CHECKING:
    from rftd.streams.folds.replay_buffer import BufferEntry


class ArealArgs(PolicyArguments, frozen=True, kw_only=True):
    """Arguments of the policy `areal` in section `policy`."""

    max_concurrent: Annotated[
        int,
        Meta(ge=0, le=10**9, description="maximum number of rollouts in flight; 0: as many as explorers have slots"),
    ] = 0
    """Maximum number of rollouts in flight; 0: no limit besides the explorers' slots."""


class Areal(Paced):
    """AReaL's capacity (arXiv 2505.24298), without retirements for age.

    capacity = min(max_concurrent - running, (bound + version + 1) * batch - (accepted + running))

    A rejected rollout leaves `running` without being accepted, and after a recovery `accepted` counts trained and
    waiting experiences: both are folds here. The capacity bounds how many experiences run ahead, not how old each of
    them is.
    """

    arguments = ArealArgs
    page = PolicyPage(
        source="AReaL",
        admits="(n + v + 1) B, at most `max_concurrent` under way",
        purpose="no rollout wasted; slow ones may be over n",
    )

    def __init__(self, spec: PolicySpec) -> None:
        """Reads the bound and the capacity from the specification, and the argument `max_concurrent`."""
        super().__init__(spec)
        self._max_concurrent = read_args(spec, ArealArgs).max_concurrent

    def most_supply(self, view: PolicyView) -> int:
        """Returns (n + v + 1) B for bound n, version v and batch size B, limited by `max_concurrent`
        running rollouts.
        """
        most = (self.bound_versions + view.steps_done + 1) * view.batch_size
        if self._max_concurrent:
            most = min(most, view.supply - view.inflight_rollouts + self._max_concurrent)
        return most


class ReadyFirst(Paced):
    """NeMo-RL's ready_first: limits groups at their start, and trains groups in the order in which they become ready.

    Groups may start for `max_staleness` batches (at least one) beyond the finished steps. No rollout is wasted, and the
    slowest ones may be older than the bound.
    """

    page = PolicyPage(source="NeMo-RL", admits="(v + max(1, n)) B", purpose="as `areal`, one batch less ahead")

    def most_supply(self, view: PolicyView) -> int:
        """Returns (v + max(1, n)) B for bound n, finished steps v and batch size B."""
        # With a bound of 0 nothing could ever start: one batch has to be under way before a step can be made.
        return (view.steps_done + max(1, self.bound_versions)) * view.batch_size


class VerlWindowArgs(PolicyArguments, frozen=True, kw_only=True):
    """Arguments of `verl_window`, by verl's names."""

    staleness_threshold: Annotated[
        float,
        Meta(
            ge=0,
            le=1000,
            description="maximum number of rollouts dispatched beyond one window, as a share of the window",
        ),
    ] = 0.5
    """Maximum number of rollouts dispatched beyond one window, as a share of the window."""
    trigger_parameter_sync_step: int = 1
    """Steps between two synchronisations."""


class VerlWindow(Paced):
    """verl's fully asynchronous window (docs/advance/fully_async.md).

    Between two synchronisations at most (1 + threshold) * sync steps * batch experiences are dispatched, including
    those unfinished or queued at the last synchronisation. Threshold 0 is a synchronous window, 1 about one step off. A
    full `queue` drops its oldest experiences, like verl's; each drop is an event.
    """

    arguments = VerlWindowArgs
    page = PolicyPage(
        source="verl",
        admits="(1 + `staleness_threshold`) x `sync_interval` x B since weights were announced",
        purpose="files from verl: 0 is a synchronous window, 1 about one step off",
    )

    @classmethod
    def scheduled(cls, sync: Synchronizer) -> Mapping[str, int]:
        """Returns the interval of synchronisation as `trigger_parameter_sync_step`."""
        return {"trigger_parameter_sync_step": trainer_interval(sync) or explorer_interval(sync)}

    def __init__(self, spec: PolicySpec) -> None:
        """Reads the bound, the arguments, and the length of the queue (0: unlimited) from the specification."""
        super().__init__(spec)
        self._args = read_args(spec, VerlWindowArgs)
        self._queue = spec.capacity if spec.evict_when_full else 0

    def most_supply(self, view: PolicyView) -> int:
        """Returns one batch for each step before the last synchronisation, plus (1 + threshold) windows of batches."""
        synced_steps = view.published_version - view.first_version
        window = (1 + self._args.staleness_threshold) * self._args.trigger_parameter_sync_step * view.batch_size
        return synced_steps * view.batch_size + int(window)

    def evict(self, view: PolicyView, buffer: BufferIndex) -> Iterator[Retirement]:
        """Yields the oldest experiences in excess of the queue's length, with reason `capacity`."""
        if self._queue and (more := len(buffer) - self._queue) > 0:
            yield Retirement("capacity", nsmallest(more, buffer.in_order(), key=_age))


class SampleLagArgs(PolicyArguments, frozen=True, kw_only=True):
    """Arguments of the policy `sample_lag` in section `policy`."""

    max_lag_samples: Annotated[int, Meta(ge=0, le=10**9, description="samples ahead of the weights; 0: one batch")] = 0
    """Samples that may be generated ahead of the weights; 0: one batch."""


class SampleLag(Paced):
    """PipelineRL's lag, counted in samples (arXiv 2509.19128).

        groups that may be submitted = ceil(max_lag / attempts) + groups of one update * (1 + updates announced)

    The trainer takes the samples available; samples older than the lag are trained and counted as stale.
    """

    arguments = SampleLagArgs
    page = PolicyPage(
        source="PipelineRL",
        admits="`max_lag_samples` and B for each version announced, and one",
        purpose="a lag counted in samples",
    )

    def __init__(self, spec: PolicySpec) -> None:
        """Reads the bound from the specification, and the argument `max_lag_samples`."""
        super().__init__(spec)
        self._max_lag = read_args(spec, SampleLagArgs).max_lag_samples

    def most_supply(self, view: PolicyView) -> int:
        """Returns the lag rounded up to complete groups, plus one batch for each published version and one more."""
        updates = 1 + view.published_version - view.first_version
        lag = self._max_lag or view.batch_size
        groups = -(-lag // view.repeat_times)
        return groups * view.repeat_times + updates * view.batch_size


def _age(experience: BufferEntry) -> tuple[int, int]:
    """Returns the position of an experience by age: of its closed group, then within it."""
    return (experience.group.offset, experience.index)

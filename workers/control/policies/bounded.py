"""Policies with a guaranteed bound: no batch holds a staler experience, because all of them sweep at consumption."""

from __future__ import annotations

from typing import Annotated, ClassVar, TypeAlias

from msgspec import Meta

from rftd.streams.spec.spec import PolicySpec
from rftd.workers.control.policies.buffer_index import Order, ReadyGroup
from rftd.workers.control.policies.paced import NoArguments, Paced, PolicyArguments, PolicyPage, read_args
from rftd.workers.control.policies.policy import Flight, PolicyView

AbortInflight: TypeAlias = Annotated[
    bool, Meta(description="give up groups in flight that began with weights too old for any later batch")
]
"""Type of the argument `abort_inflight`."""
Wait: TypeAlias = Annotated[
    bool,
    Meta(
        description="form no batch while a group in flight would be too old for the batch after it, so that slow "
        "groups are not retired"
    ),
]
"""Type of the argument `wait`."""


class HardBoundArgs(PolicyArguments, frozen=True, kw_only=True):
    """Arguments of `hard_bound` and `weight_fifo`."""

    abort_inflight: AbortInflight = False
    """True if groups that became too old in flight are given up."""
    wait: Wait = False
    """True: a batch waits for groups in flight that would be too old for the batch after it; a field of verl, too.

    Trained lengths then equal generated lengths; the price is that training waits for the longest rollout. With
    `weight_fifo` the groups that arrived last are trained first.
    """


class HardBound(Paced):
    """Admission by capacity (AReaL, arXiv 2505.24298), and a sweep at consumption (prime-rl): a hard bound.

    A group may start while the trained, waiting and running experiences stay within
        (bound + version + 1) * batch size   and   (inflight batches + steps planned) * batch size
    experiences. The version is the one at the group's beginning, so all groups that begin with it find room in
    the batches open to them: weights arrive after the step that made them. Failed and retired experiences leave the
    count, so nothing is lost on recovery. Batch n takes the oldest closed groups first, and only experiences whose
    staleness (n - 1) - oldest version is within the bound.
    """

    keeps_bound = True
    arguments: ClassVar[type[PolicyArguments]] = HardBoundArgs
    page = PolicyPage(
        source="AReaL's capacity and prime-rl's sweep",
        admits="(n + w + 1) B and (`max_inflight_batches` + p) B",
        purpose="the default: a bound that holds",
    )

    def __init__(self, spec: PolicySpec) -> None:
        """Reads `wait` and `abort_inflight`; both have an effect only with a bound."""
        super().__init__(spec)
        args = read_args(spec, HardBoundArgs)
        self._aborts = spec.bounded and args.abort_inflight
        self._waits = spec.bounded and args.wait

    def most_supply(self, view: PolicyView) -> int:
        """Returns the smaller of (n + w + 1) B (bound n, starting version w, batch size B) and the supply of
        `max_inflight_batches`.
        """
        starting = view.starting_version
        begins_with = starting if self.sweeps and starting is not None else view.version
        by_bound = (self.bound_versions + begins_with - view.first_version + 1) * view.batch_size
        return min(by_bound, self.inflight_supply(view))

    def waits_for(self, view: PolicyView) -> int | None:
        """Returns the oldest version allowed in the next batch if `wait` is set; else None."""
        return self.oldest_allowed(view) if self._waits else None

    def abort_inflight(self, view: PolicyView, flights: list[Flight]) -> list[Flight]:
        """Returns the groups too old for any later batch if `abort_inflight` is set."""
        return groups_begun_before(flights, self.oldest_allowed(view)) if self._aborts else []


class InOrder(HardBound):
    """`HardBound` in the order of the dataset: a batch takes groups in the order of their leases, not of their
    completion.

    With `sync_style: fixed` and offset 0 exactly the groups of one batch are under way, and none of the next; so the
    experiences of batch n, and their order, do not depend on the speed of any rollout.
    """

    oldest_first = True
    # The experiment file offers none of HardBoundArgs: giving up a group for its age would let speed decide.
    arguments = NoArguments
    page = PolicyPage(
        source="NeMo-RL, [deterministic](#what-is-deterministic) runs",
        admits="as `hard_bound`",
        purpose="batches in the order of the dataset",
    )

    def order(self, ready: ReadyGroup) -> Order:
        """Returns the sort key: the task's position in the dataset, then the offset of the group's close."""
        return (ready.sequence, ready.offset)


class WeightFifo(HardBound):
    """NeMo-RL's weight_fifo: `HardBound`, with the oldest weight version within the bound first.

    No experience waits until it is too old while younger ones are trained.
    """

    oldest_first = True
    page = PolicyPage(
        source="NeMo-RL", admits="as `hard_bound`", purpose="the oldest version first, so that little has to be retired"
    )

    def order(self, ready: ReadyGroup) -> Order:
        """Returns the sort key: the oldest weight version, then the default key."""
        return (ready.oldest_version, *super().order(ready))


class WindowedArgs(PolicyArguments, frozen=True, kw_only=True):
    """Arguments of the policy `windowed` in section `policy`."""

    freshest_first: Annotated[bool, Meta(description="true: use the newest version first")] = False
    """True: the newest weight version is trained first."""
    abort_inflight: AbortInflight = True
    """True: groups that began before the window are abandoned."""


class Windowed(Paced):
    """NeMo-RL's window of versions: no gate but the buffer's; experiences older than the window are retired.

    A batch takes experiences of the versions v - bound to v, in the order of closed groups or the freshest first.
    Groups begun before the window are given up, because none of their experiences could be trained.
    """

    keeps_bound = True
    arguments = WindowedArgs
    page = PolicyPage(
        source="NeMo-RL", admits="p B + 2 (n + 1) B", purpose="explorers that never wait, and some wasted rollouts"
    )

    def __init__(self, spec: PolicySpec) -> None:
        """Reads `freshest_first` and `abort_inflight`."""
        super().__init__(spec)
        self._args = read_args(spec, WindowedArgs)
        self._aborts = spec.bounded and self._args.abort_inflight

    def most_supply(self, view: PolicyView) -> int:
        """Returns the planned experiences and two batches for each version of the window."""
        # NeMo-RL's required_buffer_capacity: two batches for each version of the window.
        return view.planned_experiences + 2 * (self.bound_versions + 1) * view.batch_size

    def order(self, ready: ReadyGroup) -> Order:
        """Returns the sort key: the newest weight version first if `freshest_first` is set, then the default key."""
        return (-ready.oldest_version, *super().order(ready)) if self._args.freshest_first else super().order(ready)

    def abort_inflight(self, view: PolicyView, flights: list[Flight]) -> list[Flight]:
        """Returns the groups that began before the window if `abort_inflight` is set."""
        return groups_begun_before(flights, self.oldest_allowed(view)) if self._aborts else []


def groups_begun_before(flights: list[Flight], oldest_version: int) -> list[Flight]:
    """Returns the unfinished groups begun with weights older than `oldest_version`."""
    return [flight for flight in flights if flight.oldest_version < oldest_version]

"""`Paced` has what policies have in common: the order of a queue, the sweep at consumption, and a capacity.

The queue: highest priority first, then as groups closed, then as in the group. The sweep: staleness of
batch n's items is (n - 1) minus their oldest weight version, and nothing over the bound is planned (prime-rl).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, TypeVar
from uuid import UUID

import msgspec

from rftd.ops.decoding import converted
from rftd.ops.errors import ConfigError
from rftd.streams.spec.spec import PolicySpec
from rftd.streams.spec.synchronizer import Synchronizer
from rftd.workers.control.policies.buffer_index import BufferIndex, Order, ReadyGroup
from rftd.workers.control.policies.policy import Flight, PolicyView, Retirement

if TYPE_CHECKING:
    from rftd.streams.folds.replay_buffer import BufferEntry

A = TypeVar("A", bound=msgspec.Struct)


class PolicyArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of one kind, declared once: `Annotated[int, Meta(ge=0, description="...")]` with a default.

    The experiment file's fields, their checks and the tables of the documentation are made of them, and so is what a
    policy reads of `PolicySpec.args`.
    """


class NoArguments(PolicyArguments, frozen=True, kw_only=True):
    """The arguments of a kind that has none of its own."""


class PolicyPage(msgspec.Struct, frozen=True, kw_only=True):
    """The row of a kind in the documentation's table."""

    source: str
    admits: str
    """The supply below which groups are admitted, in the symbols of that page."""
    purpose: str


class Paced(ABC):
    """A policy that lacks its pace alone: `most_supply` says how many experiences may have been supplied."""

    keeps_bound: ClassVar[bool] = False
    """True for a kind under which nothing over the bound is trained; the others only pace by it."""
    oldest_first: ClassVar[bool] = False
    """True for a kind in whose order priorities do not come first."""
    arguments: ClassVar[type[PolicyArguments]] = NoArguments
    """The kind's fields of section `policy`, but for those that are `scheduled`."""
    page: ClassVar[PolicyPage | None] = None
    """The row of the documentation; a kind of ours must have it."""

    @classmethod
    def scheduled(cls, sync: Synchronizer) -> Mapping[str, int]:
        """The arguments that follow from the schedule, so that the experiment file has no field for them."""
        return {}

    def __init__(self, spec: PolicySpec) -> None:
        self.bound_versions = spec.max_staleness_versions
        self.sweeps = spec.bounded
        self._capacity = spec.capacity
        self._evicts = spec.evict_when_full
        self._inflight_batches = spec.max_inflight_batches

    @abstractmethod
    def most_supply(self, view: PolicyView) -> int:
        """Experiences of the stage that may have been supplied by now."""

    def admit(self, view: PolicyView) -> int:
        starting = view.starting_version
        if self.sweeps and starting is not None and starting < self.oldest_allowed(view):
            return 0  # what began now would be too old for any batch; the steps that are planned bring newer weights
        most = min(self.most_supply(view), view.total_steps * view.batch_size)
        if self._capacity and not self._evicts:
            room = self._capacity - view.cooling_experiences
            most = min(most, view.planned_experiences + room)
        return view.groups_below(most)

    def order(self, ready: ReadyGroup) -> Order:
        return (-ready.priority, ready.offset)

    def select(
        self, view: PolicyView, buffer: BufferIndex, size: int, without: frozenset[UUID]
    ) -> Sequence[BufferEntry]:
        oldest = self.oldest_allowed(view)
        fresh = buffer.in_order(without)
        if self.sweeps and buffer.oldest_version is not None and buffer.oldest_version < oldest:
            fresh = (entry for entry in fresh if entry.member.oldest_version >= oldest)
        return list(islice(fresh, size))

    def evict(self, view: PolicyView, buffer: BufferIndex) -> Iterator[Retirement]:
        if self.sweeps and (stale := list(buffer.older_than(self.oldest_allowed(view)))):
            yield Retirement("stale", stale)
        elif self._evicts and self._capacity and (more := len(buffer) - self._capacity) > 0:
            # Of those that may be planned now: else what rests would keep its place, and newer ones would go instead.
            yield Retirement("capacity", list(islice(buffer.lowest(), more)))

    def waits_for(self, view: PolicyView) -> int | None:
        return None

    def abort_inflight(self, view: PolicyView, flights: list[Flight]) -> list[Flight]:
        return []

    def oldest_allowed(self, view: PolicyView) -> int:
        """The oldest weight version that an item of the next batch may have begun with."""
        return view.first_version + view.planned_steps - self.bound_versions

    def inflight_supply(self, view: PolicyView) -> int:
        """The supply at which `max_inflight_batches` batches are under way or wait."""
        return (view.planned_steps + self._inflight_batches) * view.batch_size


def read_args(spec: PolicySpec, kind: type[A]) -> A:
    """The policy's own arguments. Raises ConfigError for one that it does not know, or of another type."""
    try:
        return converted(spec.args, kind)
    except msgspec.ValidationError as error:
        known = ", ".join(kind.__struct_fields__)
        raise ConfigError(f"policy {spec.kind}: {error}", fix=f"its own fields are: {known or 'none'}") from None

"""`Paced` is the common part of policies: the order of a queue, the sweep at consumption, and a capacity.

The queue: highest priority first, then in the order of closed groups, then as in the group. The sweep: staleness in
batch n is (n - 1) minus the oldest weight version, and nothing over the bound is planned (prime-rl).
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
from rftd.streams.spec.sections import Synchronizer
from rftd.streams.spec.spec import PolicySpec
from rftd.workers.control.policies.buffer_index import BufferIndex, Order, ReadyGroup
from rftd.workers.control.policies.policy import Flight, PolicyView, Retirement

if TYPE_CHECKING:
    from rftd.streams.folds.replay_buffer import BufferEntry

A = TypeVar("A", bound=msgspec.Struct)
"""Type of a policy's arguments."""


class PolicyArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of one kind, declared once: `Annotated[int, Meta(ge=0, description="...")]` with a default.

    The experiment file's fields, their checks and the documentation's tables are derived from the declaration, and so
    is the policy's view of `PolicySpec.args`.
    """


class NoArguments(PolicyArguments, frozen=True, kw_only=True):
    """The arguments of a kind without any."""


class PolicyPage(msgspec.Struct, frozen=True, kw_only=True):
    """A kind's row in the documentation's table."""

    source: str
    """Framework or paper that the policy comes from."""
    admits: str
    """Supply up to which groups are admitted, as a formula in the symbols of docs/concepts.md."""
    purpose: str
    """When to use the policy."""


class Paced(ABC):
    """Base class of policies; a subclass defines at least the pace, `most_supply`."""

    keeps_bound: ClassVar[bool] = False
    """True for a kind that trains nothing over the bound; the others only pace by it."""
    oldest_first: ClassVar[bool] = False
    """True for a kind that sorts by age before priority."""
    arguments: ClassVar[type[PolicyArguments]] = NoArguments
    """The kind's fields of section `policy`, except `scheduled` ones."""
    page: ClassVar[PolicyPage | None] = None
    """Row of the documentation; required of a built-in kind."""

    @classmethod
    def scheduled(cls, sync: Synchronizer) -> Mapping[str, int]:
        """Returns arguments derived from the synchronisation schedule, without fields in the experiment file."""
        return {}

    def __init__(self, spec: PolicySpec) -> None:
        """Reads the bound, the buffer's capacity and the number of batches in flight."""
        self.bound_versions = spec.max_staleness_versions
        self.sweeps = spec.bounded
        self._capacity = spec.capacity
        self._evicts = spec.evict_when_full
        self._inflight_batches = spec.max_inflight_batches

    @abstractmethod
    def most_supply(self, view: PolicyView) -> int:
        """Returns the number of experiences planned, waiting or in flight up to which groups may start now."""

    def admit(self, view: PolicyView) -> int:
        """Returns how many groups may start now, within the supply, the stage's total and the buffer's capacity."""
        starting = view.starting_version
        if self.sweeps and starting is not None and starting < self.oldest_allowed(view):
            return 0  # a new group would be too old for any batch; the planned steps bring newer weights
        most = min(self.most_supply(view), view.total_steps * view.batch_size)
        if self._capacity and not self._evicts:
            room = self._capacity - view.cooling_experiences
            most = min(most, view.planned_experiences + room)
        return view.groups_below(most)

    def order(self, ready: ReadyGroup) -> Order:
        """Returns the default sort key: the highest priority first, then the group closed first."""
        return (-ready.priority, ready.offset)

    def select(
        self, view: PolicyView, buffer: BufferIndex, size: int, without: frozenset[UUID]
    ) -> Sequence[BufferEntry]:
        """Returns the first `size` experiences in order that are fresh enough for the next batch."""
        oldest = self.oldest_allowed(view)
        fresh = buffer.in_order(without)
        if self.sweeps and buffer.oldest_version is not None and buffer.oldest_version < oldest:
            fresh = (experience for experience in fresh if experience.member.oldest_version >= oldest)
        return list(islice(fresh, size))

    def evict(self, view: PolicyView, buffer: BufferIndex) -> Iterator[Retirement]:
        """Yields the experiences too old for the bound, with reason `stale`; without any, those of lowest priority
        beyond the capacity, if the policy evicts.
        """
        if self.sweeps and (stale := list(buffer.older_than(self.oldest_allowed(view)))):
            yield Retirement("stale", stale)
        elif self._evicts and self._capacity and (more := len(buffer) - self._capacity) > 0:
            # Only experiences fit for planning now: otherwise cooling ones would keep their slots, and newer ones would
            # go instead.
            yield Retirement("capacity", list(islice(buffer.lowest(), more)))

    def waits_for(self, view: PolicyView) -> int | None:
        """Returns None: by default, planning waits for no group."""
        return None

    def abort_inflight(self, view: PolicyView, flights: list[Flight]) -> list[Flight]:
        """Returns an empty list: by default, no group is aborted."""
        return []

    def oldest_allowed(self, view: PolicyView) -> int:
        """Returns the oldest weight version allowed at the beginning of an experience of the next batch."""
        return view.first_version + view.planned_steps - self.bound_versions

    def inflight_supply(self, view: PolicyView) -> int:
        """Returns the supply equal to the planned experiences and `max_inflight_batches` further batches."""
        return (view.planned_steps + self._inflight_batches) * view.batch_size


def read_args(spec: PolicySpec, kind: type[A]) -> A:
    """Returns the policy's arguments as a struct of type `kind`. Raises ConfigError for an unknown name or a wrong
    type.
    """
    try:
        return converted(spec.args, kind)
    except msgspec.ValidationError as error:
        field_names = ", ".join(kind.__struct_fields__)
        raise ConfigError(f"policy {spec.kind}: {error}", fix=f"its own fields are: {field_names or 'none'}") from None

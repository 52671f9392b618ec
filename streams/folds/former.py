"""Snapshots of the version before, converted: an upgrade goes on from them instead of folding from event one.

That version had no number but a fingerprint of its code. It kept an id of every group, plan, step and event.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar, cast
from uuid import UUID

import msgspec

from rftd.ops.decoding import msgpack_decoder
from rftd.ops.ids import derive
from rftd.streams.events.batch import GroupRef
from rftd.streams.events.experiment import ExperimentForked, HeadRef
from rftd.streams.events.task import Member
from rftd.streams.fencing import FenceOwner
from rftd.streams.folds.group import Group
from rftd.streams.folds.once import REMEMBERED, PlannedBatches, Recent
from rftd.streams.folds.ranges import ClosedGroups, Versions
from rftd.streams.folds.replay_buffer import BufferEntry, Item
from rftd.streams.folds.spine import Plan

P = TypeVar("P", bound=msgspec.Struct)
_Fields = dict[str, Any]

# Of the code of that release: its snapshots carry it where later ones carry a number.
FINGERPRINT: Final = bytes.fromhex("a6ec2db58678491d55d422238852ed16")
_encoder: Final = msgspec.msgpack.Encoder(uuid_format="bytes")


class _Former(msgspec.Struct, kw_only=True):
    experiment: UUID | None
    marks: tuple[HeadRef, ...]
    fences: tuple[FenceOwner, ...]
    parts: dict[str, dict[str, msgspec.Raw]]


class _Waiting(msgspec.Struct):
    """An experience that waits, as that version kept it: with the names of its fields."""

    member: Member
    group: GroupRef
    index: int
    stage: int
    group_size: int
    sequence: int
    priority: float
    uses: int
    eligible_at_ns: int

    def now(self) -> BufferEntry:
        """The entry as this release keeps it."""
        return BufferEntry(*msgspec.structs.astuple(self))


class _Item(msgspec.Struct):
    entry: _Waiting | None
    use: int
    last: bool

    def now(self) -> Item:
        """The item as this release keeps it."""
        return Item(self.entry.now() if self.entry else None, self.use, self.last)


def is_of(version: bytes) -> bool:
    """True if what stands for the version in a file is that of the version before."""
    return version == FINGERPRINT


def read(payload: memoryview, kind: type[P]) -> dict[str, Any]:
    """The fields of a snapshot, its parts as this release keeps them. Raises msgspec.MsgspecError."""
    found = msgpack_decoder(_Former).decode(payload)
    fields: dict[str, _Fields] = {name: dict(raw) for name, raw in found.parts.items()}
    spine = fields.get("spine", {})
    if spine:
        _convert_spine(spine)
    if "weights" in fields:
        _convert_weights(fields["weights"])
    if "committed" in fields:
        fields["committed"]["count"] = len(_taken(fields["committed"], "_committed", set[UUID]))
    if "groups" in fields:
        _convert_groups(fields["groups"])
    if "ledger" in fields:
        _convert_ledger(fields["ledger"], spine["batches"])
    parts = msgpack_decoder(kind).decode(_encoder.encode(fields))
    return {"experiment": found.experiment, "marks": found.marks, "fences": found.fences, "parts": parts}


def _taken(fields: _Fields, name: str, kind: Any) -> Any:
    return msgpack_decoder(kind).decode(fields.pop(name))


def _convert_spine(spine: _Fields) -> None:
    offsets: dict[int, int] = _taken(spine, "plan_offsets", dict[int, int])
    planned: dict[UUID, bool] = _taken(spine, "_batches", dict[UUID, bool])
    checksums: dict[tuple[int, int], str] = _taken(spine, "checksums", dict[tuple[int, int], str])
    plans: dict[int, Plan] = msgpack_decoder(dict[int, Plan]).decode(spine["plans"])
    forked: ExperimentForked | None = msgpack_decoder(cast(Any, ExperimentForked | None)).decode(spine["forked"])
    batches = PlannedBatches(abandoned={id for id, stands in planned.items() if not stands})
    for step in sorted(offsets):
        batches.steps.add(step)
    batches.newest = {step: plan.event.batch for step, plan in plans.items()}
    batches.furthest = msgpack_decoder(int).decode(spine["furthest"])
    # A fork's first weights are no step of its own: they were made in its parent's history.
    at_step = forked.at_step if forked is not None else -1
    executed = Versions()
    for key in sorted(checksums):
        if key[0] != at_step:
            executed.add(key)
    spine |= {
        "plan_offsets": dict(list(offsets.items())[-REMEMBERED:]),
        "batches": batches,
        "begun": {key: checksum for key, checksum in checksums.items() if key[0] == at_step},
        "checksums": dict(list(checksums.items())[-REMEMBERED:]),
        "executed": executed,
    }


def _convert_weights(weights: _Fields) -> None:
    retired: set[tuple[int, int]] = _taken(weights, "retired", set[tuple[int, int]])
    published: dict[tuple[int, int], msgspec.Raw] = _taken(weights, "published", dict[tuple[int, int], msgspec.Raw])
    versions = Versions()
    for key in sorted(retired):
        versions.add(key)
    weights["retired"] = versions
    weights["published"] = {key: raw for key, raw in published.items() if key not in retired or not key[0]}
    del weights["_announced"]


def _convert_ledger(ledger: _Fields, batches: PlannedBatches) -> None:
    seen: set[UUID] = _taken(ledger, "_seen", set[UUID])
    items: dict[UUID, dict[UUID, _Item]] = _taken(ledger, "_items", dict[UUID, dict[UUID, _Item]])
    for name in ("waiting", "cooling"):
        entries: dict[UUID, _Waiting] = _taken(ledger, name, dict[UUID, _Waiting])
        ledger[name] = {id: entry.now() for id, entry in entries.items()}
    ledger |= {
        "_items": {batch: {id: item.now() for id, item in each.items()} for batch, each in items.items()},
        # One set held the ids of groups and of events alike. An id is of one kind only, so both may keep all of them.
        "_closed": ClosedGroups(others=seen),
        "_batches": batches,
        "_recent": Recent(older=seen),
    }


def _convert_groups(groups: _Fields) -> None:
    open: dict[UUID, Group] = _taken(groups, "open", dict[UUID, Group])
    expired: set[UUID] = _taken(groups, "_expired", set[UUID])
    for group in open.values():
        leases = (derive(group.id, "lease", number) for number in range(1, group.attempts + 1))
        # That version kept one set for all groups; the ids of a group's leases follow from its own.
        group._over = expired.intersection(leases)
    groups |= {"open": open, "_closed": ClosedGroups(others=_taken(groups, "_closed", set[UUID]))}

"""Snapshots have a version, written by hand: those of another one are folded from the log again."""

from __future__ import annotations

from functools import reduce
from operator import or_
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
import xxhash
from synthetic.log.long_history import EXPERIMENT, LongHistory

from rftd.daemon.run.registry import Known
from rftd.ops.errors import CodecError
from rftd.streams.events.experiment import HeadRef
from rftd.streams.events.weights import WeightsPublished
from rftd.streams.folds.pieces import ENTRIES, pieces_of
from rftd.streams.folds.run_state import RunParts, RunState
from rftd.streams.folds.snapshot import VERSION, Nothing, Snapshot, pack, unpack
from rftd.streams.log.fencing import FenceOwner
from rftd.streams.spec.spec import ExperimentSpec

SHAPE = "da31b6924178b786"
"""The digest of the shape of version 1. If this test fails, what folds keep has another shape: write the new one here
and, once 0.1.0 is tagged, raise VERSION in streams/folds/snapshot.py. What folds mean may change without their shape:
that needs a new version, too. A field that nobody reads may go without one, for a snapshot that has it is read alike.
"""
ADDED: set[tuple[type, str]] = set()
"""Fields of events and folds that came later, with a default by which snapshots without them are read alike."""


def shape_of(kind: Any, known: dict[Any, None]) -> str:
    """A type with everything that is written of it, as text."""
    if kind is ExperimentSpec:  # what it gains has a default, by which older logs and snapshots are read alike
        return "specification"
    if get_origin(kind) is Union:  # bounds of a value are no part of the shape; without them a union has another name
        kind = reduce(or_, get_args(kind))
    inner = [each for each in get_args(kind) if each is not Ellipsis]
    text = "union" if isinstance(kind, UnionType) else getattr(kind, "__name__", str(kind))
    if inner:
        return f"{text}[{', '.join(shape_of(each, known) for each in inner)}]"
    fields = getattr(kind, "__struct_fields__", None) or getattr(kind, "_fields", None)
    if fields is None:
        return text
    if kind in known:  # by its place, for the name of a class is not written
        return f"#{list(known).index(kind)}"
    known[kind] = None
    hints = get_type_hints(kind)
    written = getattr(kind, "__struct_encode_fields__", fields)
    pairs = [pair for pair in zip(fields, written, strict=True) if (kind, pair[0]) not in ADDED]
    named = ", ".join(f"{name}: {shape_of(hints[field], known)}" for field, name in pairs)
    return f"({named}; {getattr(getattr(kind, '__struct_config__', None), 'array_like', '')})"


def test_weights_announced_before_rounding_existed_belong_to_their_step() -> None:
    event = WeightsPublished(
        version=3,
        generation=0,
        stage=0,
        method="checkpoint",
        path="/w",
        manifest="m",
        checksum="c",
        size_bytes=1,
        host="h",
        trained="t",
    )
    assert event.step_checksum == "t"
    before = msgspec.to_builtins(event)
    del before["trained"]
    assert msgspec.convert(before, WeightsPublished).step_checksum == "c"


def test_another_shape_is_another_version() -> None:
    assert VERSION == 1
    shape = "".join(shape_of(kind, {}) for kind in (RunParts, Known, HeadRef, FenceOwner))
    assert xxhash.xxh3_64_hexdigest(shape.encode()) == SHAPE


def large() -> Snapshot[RunParts]:
    history, state = LongHistory(waiting=3000), RunState(EXPERIMENT)
    for decoded in history.steps(3):
        state.apply(decoded)
    marks = (HeadRef("rftd.tasks", 0, 7, b"c" * 16),)
    return Snapshot(experiment=EXPERIMENT, marks=marks, fences=(), parts=state.parts())


def test_no_piece_holds_the_loop_up() -> None:
    """Python's lock is kept for one piece at a time, and each is small, however much is under way."""
    snapshot = large()
    pieces = list(pieces_of(snapshot.parts))
    assert len(pieces) >= len(snapshot.parts.replay_buffer.waiting) // ENTRIES
    assert max(map(len, pieces)) < 400 * ENTRIES
    assert unpack(pack(snapshot), Snapshot[RunParts]).parts.replay_buffer == snapshot.parts.replay_buffer


def test_a_snapshot_of_another_version_is_no_fold_but_still_a_witness() -> None:
    snapshot = large()
    other = pack(snapshot).replace(b"%016d" % VERSION, b"%016d" % (VERSION + 1), 1)
    with pytest.raises(CodecError, match=r"of version 0+2, and this release reads 1"):
        unpack(other, Snapshot[RunParts])
    for data in (other, pack(snapshot)):
        witness = unpack(data, Snapshot[Nothing])
        assert (witness.experiment, witness.marks) == (EXPERIMENT, snapshot.marks)
    with pytest.raises(CodecError, match="sha256"):
        unpack(other[:-1] + b"x", Snapshot[Nothing])

"""Rule 11: a fold that goes on from a snapshot is the fold of everything."""

from __future__ import annotations

from unittest import mock
from uuid import UUID

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic.log.busy_run import fold, seen, written
from synthetic.log.recorder import interleaved

from rftd.ops.errors import CodecError
from rftd.streams.folds import pieces
from rftd.streams.folds.run_state import RunParts, RunState, SpineParts
from rftd.streams.folds.snapshot import Snapshot, pack, unpack
from rftd.streams.log.effective import effective, of_experiment
from rftd.streams.log.envelope import Record
from rftd.streams.log.fencing import FenceView
from rftd.streams.log.topics import CHECKPOINTS, EXPERIMENTS, WEIGHTS


def go_on(state: RunState, fences: FenceView, records: list[Record]) -> None:
    for record in records:
        decoded = effective(record, fences, of_experiment(state.experiment))
        if decoded is not None:
            state.apply(decoded)


def everything(state: RunState) -> dict[str, object]:
    """Also what decisions do not rest on."""
    return msgspec.structs.asdict(state.parts())


def packed(experiment: UUID, state: RunState, fences: FenceView) -> bytes:
    return pack(Snapshot(experiment=experiment, marks=(), fences=fences.owners(), parts=state.parts()))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1 << 16),
    steps=st.integers(0, 3),
    mix=st.integers(0, 1 << 16),
    cuts=st.lists(st.floats(0, 1), min_size=1, max_size=3),
    ended=st.booleans(),
    entries=st.sampled_from([1, 3, pieces.ENTRIES]),
)
def test_going_on_from_snapshots_is_folding_everything(
    seed: int, steps: int, mix: int, cuts: list[float], ended: bool, entries: int
) -> None:
    experiment, recorder = written(seed, steps, ended=ended)
    record_of = {draft.id: record for draft, record in zip(recorder.drafts, recorder.records, strict=True)}
    records = [record_of[draft.id] for draft in interleaved(recorder.drafts, mix)]
    places = sorted({int(cut * len(records)) for cut in cuts})
    state, fences = RunState(experiment), FenceView()
    for start, end in zip([0, *places], [*places, len(records)], strict=True):
        go_on(state, fences, records[start:end])
        with mock.patch.object(pieces, "ENTRIES", entries):
            snapshot = unpack(packed(experiment, state, fences), Snapshot[RunParts])
        state, fences = RunState(experiment), FenceView(snapshot.fences)
        state.adopt(snapshot.parts)
    whole, whole_fences = RunState(experiment), FenceView()
    go_on(whole, whole_fences, records)
    assert seen(state) == seen(whole) == seen(fold(experiment, recorder.records))
    assert everything(state) == everything(whole)
    assert list(state.replay_buffer.waiting) == list(whole.replay_buffer.waiting)
    assert sorted(fences.owners(), key=repr) == sorted(whole_fences.owners(), key=repr)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1 << 16), cut=st.floats(0, 1))
def test_a_worker_takes_the_part_of_its_partitions(seed: int, cut: float) -> None:
    """A trainer goes on from the daemon's snapshot, and knows what one knows that folded its three partitions."""
    experiment, recorder = written(seed, 2, ended=False)
    place = int(cut * len(recorder.records))
    state, fences = RunState(experiment), FenceView()
    go_on(state, fences, recorder.records[:place])
    snapshot = unpack(packed(experiment, state, fences), Snapshot[SpineParts])
    own = [record for record in recorder.records if record.partition.stream in (EXPERIMENTS, WEIGHTS, CHECKPOINTS)]
    restored, whole = (RunState(experiment, spine_only=True) for _ in range(2))
    restored.adopt(snapshot.parts)
    later = {id(record) for record in recorder.records[place:]}
    go_on(restored, FenceView(snapshot.fences), [record for record in own if id(record) in later])
    go_on(whole, FenceView(), own)
    assert everything(restored) == everything(whole)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 16), at=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_no_changed_byte_is_read(seed: int, at: float, flip: int) -> None:
    experiment, recorder = written(seed % 4, 1, ended=False)
    data = bytearray(packed(experiment, fold(experiment, recorder.records), FenceView()))
    data[int(at * len(data))] ^= flip
    for damaged in (bytes(data), bytes(data[: int(at * len(data))])):
        try:
            unpack(damaged, Snapshot[RunParts])
        except CodecError:
            continue
        raise AssertionError("a damaged snapshot was read")

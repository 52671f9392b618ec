"""Events to bytes and back, with limits."""

from __future__ import annotations

from uuid import UUID

import msgspec
import pytest
from synthetic.worlds.desk import scores_of

from rftd.ops import limits
from rftd.ops.clock import ManualClock
from rftd.ops.errors import CodecError
from rftd.ops.ids import SeededIds
from rftd.streams.events.experience import RolloutFailed
from rftd.streams.events.experiment import ExperimentWarned, Fence
from rftd.streams.log import topics
from rftd.streams.log.codec import Writer, decode, decode_as, decode_head, to_json
from rftd.streams.log.envelope import Draft, Record
from rftd.streams.log.topics import Partition, partition_of

EXPERIMENT = UUID(int=5)
FAILED = RolloutFailed(group=UUID(int=1), rollout=2, stage=0, lease=UUID(int=3), code="RFTD-WRK-002", reason="it ended")

DEEP = b"\x91" * 5000 + b"\xc0"
"""Valid MessagePack: lists in lists, more of them than a stack has room for."""


@pytest.fixture
def writer() -> Writer:
    clock = ManualClock()
    return Writer(source="explorer/test", clock=clock, ids=SeededIds(clock, 1), role="trainer", epoch=4)


def stored(draft: Draft, offset: int = 7) -> Record:
    return Record(draft.partition, offset, bytes(16), draft.head, draft.value)


def test_an_event_comes_back_with_its_attributes(writer: Writer) -> None:
    draft = writer.draft(FAILED, experiment=EXPERIMENT, key=FAILED.group, causation=FAILED.lease, traceparent="00-ab")
    assert draft.partition == partition_of(topics.EXPERIENCES, FAILED.group)
    decoded = decode(stored(draft))
    assert decoded.event == FAILED
    assert (decoded.partition, decoded.offset) == (draft.partition, 7)
    head = decoded.head
    assert (head.id, head.type, head.version, head.experiment) == (draft.id, "rollout.failed", 1, EXPERIMENT)
    assert (head.source, head.role, head.epoch) == ("explorer/test", "trainer", 4)
    assert (head.causation, head.correlation, head.traceparent) == (FAILED.lease, None, "00-ab")


def test_the_default_key_is_the_experiment(writer: Writer) -> None:
    draft = writer.draft(ExperimentWarned(text="w"), experiment=EXPERIMENT)
    assert draft.partition == partition_of(topics.EXPERIMENTS, EXPERIMENT)


def test_a_fence_goes_to_any_partition_and_others_only_to_their_stream(writer: Writer) -> None:
    slot = Partition(topics.TASKS, 3)
    fence = Fence(role="dispatcher", epoch=1, previous=0, owner=UUID(int=1))
    assert writer.draft(fence, experiment=EXPERIMENT, partition=slot).partition == slot
    with pytest.raises(AssertionError):
        writer.draft(ExperimentWarned(text="w"), experiment=EXPERIMENT, partition=slot)


def test_an_event_over_the_limit_is_refused_before_it_is_written(writer: Writer) -> None:
    with pytest.raises(CodecError, match=r"experiment.warned of \d+ bytes is over the limit"):
        writer.draft(ExperimentWarned(text="x" * limits.RECORD_SIZE_BYTES), experiment=EXPERIMENT)


@pytest.mark.parametrize("damage", [b"", b"\xc1", b"\x91\x01", bytes(40), DEEP])
def test_unreadable_bytes_are_codec_errors_with_the_place(writer: Writer, damage: bytes) -> None:
    draft = writer.draft(FAILED, experiment=EXPERIMENT, key=FAILED.group)
    for broken in (
        Record(draft.partition, 7, bytes(16), damage, draft.value),
        Record(draft.partition, 7, bytes(16), draft.head, damage),
    ):
        with pytest.raises(CodecError) as error:
            decode(broken)
        assert error.value.where == f"{draft.partition}@7"


def test_a_payload_with_a_field_of_any_depth_is_a_codec_error(writer: Writer) -> None:
    """The field is one that this release does not know and would pass over."""
    draft = writer.draft(FAILED, experiment=EXPERIMENT, key=FAILED.group)
    fields = msgspec.msgpack.decode(draft.value)
    longer = msgspec.msgpack.encode(fields | {"later": None})
    record = Record(draft.partition, 7, bytes(16), draft.head, longer)
    assert decode(record).event == FAILED
    with pytest.raises(CodecError, match=r"unreadable rollout.failed v1") as error:
        decode(msgspec.structs.replace(record, value=longer.removesuffix(b"\xc0") + DEEP))
    assert error.value.where == f"{draft.partition}@7"


def test_an_envelope_whose_text_is_no_utf8_is_a_codec_error_with_the_place(writer: Writer) -> None:
    draft = writer.draft(FAILED, experiment=EXPERIMENT, key=FAILED.group)
    head = draft.head.replace(b"explorer/test", b"explorer/\xff\xfe\xfd\xfc")
    assert head != draft.head
    with pytest.raises(CodecError, match="envelope") as raised:
        decode_head(msgspec.structs.replace(stored(draft), head=head))
    assert raised.value.where == f"{draft.partition}@7"


def test_an_unknown_type_is_named(writer: Writer) -> None:
    draft = writer.draft(FAILED, experiment=EXPERIMENT, key=FAILED.group)
    head = msgspec.structs.replace(decode_head(stored(draft)), type="rollout.dreamt")
    foreign = msgspec.msgpack.Encoder(uuid_format="bytes").encode(head)
    with pytest.raises(CodecError, match=r"no event type 'rollout.dreamt'"):
        decode(Record(draft.partition, 7, bytes(16), foreign, draft.value))


def test_decode_as_refuses_another_type(writer: Writer) -> None:
    record = stored(writer.draft(FAILED, experiment=EXPERIMENT, key=FAILED.group))
    assert decode_as(record, RolloutFailed) == FAILED
    with pytest.raises(CodecError, match="expected Fence, found RolloutFailed"):
        decode_as(record, Fence)


def test_json_is_for_people() -> None:
    fields = to_json(scores_of([0.0, 0.0, 0.0]))
    assert msgspec.json.decode(msgspec.json.encode(fields)) == fields
    assert (fields["rewards"], fields["tokens"], fields["eval"]) == ("f4[3]", "u4[3]", str(UUID(int=1)))

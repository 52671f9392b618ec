"""The small parts: windows of identities, back-pressure, headers, quiet logs."""

from __future__ import annotations

import base64
import logging
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from rftd.ops.clock import ManualClock
from rftd.ops.errors import CodecError
from rftd.ops.ids import SeededIds
from rftd.streams.events.experiment import ExperimentPaused
from rftd.streams.kafka.connect import Quiet
from rftd.streams.kafka.records import (
    HEAD,
    Duplicates,
    IdWindow,
    envelope_of,
    headers_of,
    key_of,
    records_of,
    sum_of,
)
from rftd.streams.kafka.tailing import PATIENCE_S, Pressure
from rftd.streams.log.codec import Writer, decode_head
from rftd.streams.log.envelope import Record
from rftd.streams.log.requests import is_request, request_in
from rftd.streams.log.topics import EXPERIMENTS, REQUESTS, Partition

A = Partition("rftd.experiments", 0)


def record(offset: int, size_bytes: int = 100) -> Record:
    return Record(A, offset, b"", b"", bytes(size_bytes))


def test_a_window_knows_the_first_offset_of_recent_identities() -> None:
    window = IdWindow(records=3)
    assert window.admit(b"a", 10)
    assert window.admit(b"a", 10)
    assert not window.admit(b"a", 11)
    assert window.find(b"a") == 10
    assert window.find(b"z") is None
    assert window.admit(b"a", 9)
    assert window.find(b"a") == 9
    assert window.admit(b"", 1)
    assert window.admit(b"", 2)
    for number, key in enumerate((b"b", b"c", b"d"), start=20):
        assert window.admit(key, number)
    assert window.find(b"a") is None
    assert window.admit(b"a", 30)


def test_headers_carry_a_draft_there_and_back() -> None:
    clock = ManualClock()
    ids = SeededIds(clock, 1)
    experiment = ids.new()
    draft = Writer(source="d", clock=clock, ids=ids).draft(ExperimentPaused(), experiment=experiment)
    digest = sum_of(draft.head, draft.value)
    key, headers = headers_of(draft, key_of(draft), digest)
    assert key == str(experiment).encode()
    found = envelope_of(headers, draft.value)
    assert (found.key, found.head, found.sum) == (key_of(draft), draft.head, digest)
    shuffled = envelope_of(list(reversed(headers)), draft.value)
    assert shuffled == found
    named = {name: value for name, value in headers if not name.startswith("rftd")}
    foreign = envelope_of(list(named.items()), draft.value)
    built = decode_head(Record(A, 0, b"", foreign.head, b""))
    assert (built.id, built.type, built.version, built.experiment) == (draft.id, "experiment.paused", 1, experiment)
    assert foreign.key == key_of(draft)


@pytest.mark.parametrize(
    "change",
    [
        {"ce_specversion": b"2.0"},
        {"ce_type": None},
        {"ce_source": b"\xff\xfe"},
        {"ce_time": b"yesterday"},
        {"ce_rftdversion": b"one"},
    ],
)
def test_what_is_no_event_has_no_head(change: dict[str, bytes | None]) -> None:
    headers = {"ce_specversion": b"1.0", "ce_id": b"7", "ce_type": b"t", "ce_source": b"s"}
    assert envelope_of(list(headers.items()), b"").head
    found = envelope_of(list({**headers, **change}.items()), b"")
    assert found.head == b""
    assert found.key == b""
    with pytest.raises(CodecError):
        decode_head(Record(A, 0, found.sum, found.head, b""))


def test_a_trace_travels_in_both_headers_and_is_read_from_either() -> None:
    clock = ManualClock()
    ids = SeededIds(clock, 1)
    text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    draft = Writer(source="d", clock=clock, ids=ids).draft(ExperimentPaused(), experiment=ids.new(), traceparent=text)
    _, headers = headers_of(draft, key_of(draft), sum_of(draft.head, draft.value))
    named = {name: value for name, value in headers if not name.startswith("rftd")}
    assert (named["traceparent"], named["ce_traceparent"]) == (text.encode(), text.encode())
    for left_out in ("traceparent", "ce_traceparent"):
        foreign = envelope_of([(name, value) for name, value in named.items() if name != left_out], draft.value)
        assert decode_head(Record(A, 0, b"", foreign.head, b"")).traceparent == text


def message(value: bytes | None, **headers: bytes | None) -> Any:
    return SimpleNamespace(
        offset=3, value=value, headers=[(name.replace("__", "-"), each) for name, each in headers.items()]
    )


def test_a_request_in_binary_mode_is_delivered_in_structured_mode() -> None:
    asked = {"ce_specversion": b"1.0", "ce_type": b"rftd.experiment.pause", "ce_source": b"/ci", "ce_id": b"7"}
    whole = message(b'{"reason": "x"}', **asked, ce_subject=b"mine", content__type=b"application/json")
    place = Partition(REQUESTS, 1)
    # Twice: a second one of the same id has its own answer.
    for record in records_of(place, [whole, whole], IdWindow(), Duplicates()):
        event = request_in(record)
        assert event is not None
        names = ("specversion", "type", "source", "id", "subject", "datacontenttype")
        assert [event.text(name) for name in names] == [
            "1.0",
            "rftd.experiment.pause",
            "/ci",
            "7",
            "mine",
            "application/json",
        ]
        assert base64.b64decode(event.text("data_base64")) == b'{"reason": "x"}'
        assert record.chain == sum_of(b"", record.value)
    other = [
        message(b"", **{**asked, "ce_source": b"\xff\xfe"}),
        message(None, **{**asked, HEAD.replace("-", "__"): b"ours"}),
    ]
    assert not [each for each in records_of(place, other, None, Duplicates()) if is_request(each)]
    elsewhere = records_of(Partition(EXPERIMENTS, 1), [whole], None, Duplicates())
    assert not is_request(elsewhere[0])


def test_foreign_ids_that_are_no_uuids_are_derived_from_source_and_id() -> None:
    def key(source: bytes) -> bytes:
        headers = [("ce_specversion", b"1.0"), ("ce_id", b"7"), ("ce_type", b"t"), ("ce_source", source)]
        return envelope_of(headers, b"").key

    assert key(b"s") == key(b"s") != key(b"other")
    assert UUID(key(b"s").decode()).version == 5


def test_a_full_ring_pauses_until_followers_have_read() -> None:
    clock = ManualClock()
    pressure = Pressure(1000, clock)
    pressure.read(1, {A: 0})
    pressure.arrived([record(offset) for offset in range(20)])
    assert list(pressure.changes({A: 5})) == []
    assert list(pressure.changes({A: 20})) == [(A, True)]
    assert list(pressure.changes({A: 20})) == []
    pressure.read(1, {A: 15})
    assert list(pressure.changes({A: 20})) == [(A, False)]


def test_a_stuck_follower_stops_nobody_for_ever() -> None:
    clock = ManualClock()
    pressure = Pressure(1000, clock)
    pressure.read(1, {A: 0})
    pressure.read(2, {A: 20})
    pressure.arrived([record(offset) for offset in range(20)])
    assert list(pressure.changes({A: 20})) == [(A, True)]
    clock.advance(PATIENCE_S + 0.1)
    assert list(pressure.changes({A: 20})) == [(A, False)]
    assert list(pressure.changes({A: 25})) == []
    assert list(pressure.changes({A: 40})) == [(A, True)], "the one that keeps up still counts"
    pressure.gone(2)
    assert list(pressure.changes({A: 40})) == [(A, False)]


def test_who_catches_up_from_below_the_tail_does_not_hold_it() -> None:
    pressure = Pressure(1000, ManualClock())
    pressure.began(A, 5000)
    pressure.read(1, {A: 0})
    pressure.arrived([record(5000)])
    assert list(pressure.changes({A: 6000})) == []


def test_aiokafkas_errors_are_few_warnings(caplog: pytest.LogCaptureFixture) -> None:
    quiet = Quiet()
    for number in range(100):
        quiet.handle(logging.LogRecord("aiokafka", logging.ERROR, "", 0, "no %s", (number,), None))
    assert [(entry.levelname, entry.getMessage()) for entry in caplog.records] == [("WARNING", "no 0")]

"""Events of every release from 0.1.0 on stay readable: the files in tests/golden/events are what releases wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from rftd.ops.errors import CodecError
from rftd.streams.events import catalogue, registry
from rftd.streams.events.catalogue import UnknownVersionError, definitions, resolve
from rftd.streams.events.registry import Event
from rftd.streams.log import topics
from rftd.streams.log.codec import decode
from rftd.streams.log.envelope import Head, Record
from rftd.streams.log.topics import Partition

FOLDER = Path(__file__).parents[3] / "golden" / "events"


class Golden(msgspec.Struct):
    """An entry of the golden file, as tests/golden/make_golden.py writes it."""

    type: str
    version: int
    value_hex: str
    fields: dict[str, Any]


GOLDENS = {path.stem: msgspec.json.decode(path.read_bytes(), type=Golden) for path in sorted(FOLDER.glob("*.json"))}


def holds(actual: Any, expected: Any) -> bool:
    """True if `actual` is `expected`, perhaps with fields added later."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        return all(key in actual and holds(actual[key], item) for key, item in expected.items())
    if isinstance(expected, list) and isinstance(actual, list):
        return len(actual) >= len(expected) and all(map(holds, actual, expected))
    return bool(actual == expected)


def test_the_catalogue_has_every_module_of_types() -> None:
    folder = Path(catalogue.__file__).parent
    others = {"__init__", "registry", "catalogue"}
    assert {each.__name__.rpartition(".")[2] for each in catalogue.CHAPTERS} == {
        file.stem for file in folder.glob("*.py") if file.stem not in others
    }


@pytest.mark.parametrize("definition", definitions(), ids=lambda definition: definition.name)
def test_every_version_of_every_type_has_a_golden_file(definition: registry.Definition) -> None:
    for version in range(1, definition.version + 1):
        assert f"{definition.name}.v{version}" in GOLDENS, "run tests/golden/make_golden.py before each change"


@pytest.mark.parametrize("name", GOLDENS)
def test_a_golden_event_decodes_to_what_was_written(name: str) -> None:
    golden = GOLDENS[name]
    event = resolve(golden.type, golden.version).decode(bytes.fromhex(golden.value_hex))
    definition = registry.definition_of(type(event))
    if golden.version == definition.version:
        fields = msgspec.json.decode(msgspec.json.encode(msgspec.to_builtins(event)))
        assert holds(fields, golden.fields)
        if fields == golden.fields:  # no field was added since
            assert msgspec.msgpack.Encoder(uuid_format="bytes").encode(event).hex() == golden.value_hex


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> type[Event]:
    """An event type at version 3, of which versions 1 and 2 were once written."""
    monkeypatch.setattr(registry, "_by_name", dict(registry._by_name))
    monkeypatch.setattr(registry, "_by_kind", dict(registry._by_kind))

    @registry.event("test.scored", stream=topics.WORKERS, owner=registry.NOBODY, version=3)
    class Scored(Event, frozen=True, kw_only=True):
        task: UUID
        score: float

    @registry.upcast(Scored, 1)
    def percent_to_share(fields: dict[str, Any]) -> dict[str, Any]:
        return {"id": fields["id"], "share": fields["percent"] / 100}

    @registry.upcast(Scored, 2)
    def names(fields: dict[str, Any]) -> dict[str, Any]:
        return {"task": fields["id"], "score": fields["share"]}

    return Scored


def record(version: int, fields: dict[str, Any]) -> Record:
    head = Head(id=UUID(int=1), type="test.scored", version=version, experiment=None, source="test", time_ns=0)
    encode = msgspec.msgpack.Encoder(uuid_format="bytes").encode
    return Record(Partition(topics.WORKERS, 0), 4, bytes(16), encode(head), encode(fields))


def test_old_versions_are_upcast_step_by_step(scored: Any) -> None:
    task = UUID(int=9)
    expected = scored(task=task, score=0.5)
    assert decode(record(1, {"id": task, "percent": 50})).event == expected
    assert decode(record(2, {"id": task, "share": 0.5})).event == expected
    assert decode(record(3, {"task": task, "score": 0.5})).event == expected


def test_a_newer_version_is_refused_by_name(scored: Any) -> None:
    with pytest.raises(UnknownVersionError, match=r"test.scored v4 is newer than v3") as error:
        decode(record(4, {}))
    assert error.value.fix == "upgrade this process before the writers"


def test_a_missing_upcaster_and_foreign_fields_are_codec_errors(scored: Any) -> None:
    with pytest.raises(CodecError, match=r"no upcaster from test.scored v0"):
        decode(record(0, {}))
    with pytest.raises(CodecError, match=r"unreadable test.scored v1") as error:
        decode(record(1, {"other": 1}))
    assert error.value.where == "rftd.workers/0@4"

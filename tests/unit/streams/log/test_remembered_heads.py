"""The log's own events are witnesses of its heads: each field that holds heads is heard, whatever its type."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import msgspec
import pytest
from msgspec import inspect
from synthetic.log.recorder import Recorder

from rftd.streams.events import registry
from rftd.streams.events.catalogue import definitions
from rftd.streams.events.experiment import HeadRef
from rftd.streams.events.registry import NOBODY, Definition, Event, definition_of, event
from rftd.streams.log import topics
from rftd.streams.log.chain import Mark
from rftd.streams.log.lost_records import remembered_within
from rftd.streams.log.marked import HEADS, RememberedHeads, mark_of
from rftd.streams.log.topics import Partition
from rftd.streams.memory import MemoryLog

pytestmark = pytest.mark.anyio

EVENTS = Path(__file__).parents[3] / "golden" / "events"
REFS = (HeadRef(topics.TASKS, 3, 7, b"c" * 16),)
REMEMBERED = {Partition(topics.TASKS, 3): Mark(7, b"c" * 16)}


class Golden(msgspec.Struct):
    """The bytes that a release wrote."""

    value_hex: str


class Witnessed(msgspec.Struct, frozen=True):
    """A part of an event: the mark is not on the event's own field."""

    heads: Annotated[tuple[HeadRef, ...], HEADS] = ()


def fields_with_heads(kind: type[Event]) -> list[str]:
    """The fields of an event type that say that they hold heads."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return [field.name for field in info.fields if isinstance(mark_of(field.type), RememberedHeads)]


def with_heads(definition: Definition) -> Event:
    """A golden event of this type in which each field that holds heads holds `REFS`."""
    path = EVENTS / f"{definition.name}.v{definition.version}.json"
    written = definition.decode(bytes.fromhex(msgspec.json.decode(path.read_bytes(), type=Golden).value_hex))
    return msgspec.structs.replace(written, **dict.fromkeys(fields_with_heads(definition.kind), REFS))


async def heard(written: Event) -> list[dict[Partition, Mark]]:
    """The heads that a log with this event alone remembers."""
    recorder, log = Recorder(), MemoryLog()
    recorder.write(written, UUID(int=5))
    await log.append(recorder.drafts)
    return [dict(witness.heads) for witness in await remembered_within(log)]


@pytest.mark.parametrize("definition", definitions(), ids=lambda definition: definition.name)
async def test_the_heads_in_an_event_of_any_type_are_heard(definition: Definition) -> None:
    expected = [REMEMBERED] if fields_with_heads(definition.kind) else []
    assert await heard(with_heads(definition)) == expected


def test_fences_and_checkpoints_hold_heads() -> None:
    holding = {definition.name for definition in definitions() if fields_with_heads(definition.kind)}
    assert {"fence", "checkpoint.committed"} <= holding


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A new event type, in a stream whose other types hold no heads."""
    monkeypatch.setattr(registry, "_by_name", dict(registry._by_name))
    monkeypatch.setattr(registry, "_by_kind", dict(registry._by_kind))

    @event("test.noted", stream=topics.WEIGHTS, owner=NOBODY)
    class Noted(Event, frozen=True, kw_only=True):
        inside: Witnessed

    return lambda refs: Noted(inside=Witnessed(refs))


async def test_a_new_type_is_heard_by_its_mark_alone(noted: Any) -> None:
    assert definition_of(type(noted(()))).stream == topics.WEIGHTS
    assert await heard(noted(REFS)) == [REMEMBERED]
    assert await heard(noted(())) == []

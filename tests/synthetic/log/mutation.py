"""Records that nobody wrote: those of whole runs, every event type among them, with fields that say something else."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import msgspec
from synthetic.log.busy_run import written
from synthetic.log.recorder import Recorder

from rftd.streams.events.catalogue import definition_named, definitions
from rftd.streams.events.experiment import ExperimentSubmitted
from rftd.streams.log.envelope import Draft, Record
from rftd.streams.spec.spec import TasksetSpec

GOLDEN: Final = Path(__file__).parents[2] / "golden" / "events"
INTEGERS: Final = (-1, 0, 1, 2, 3, 7, 100, 99_999, 100_001, 10**6, 1 << 31, 1 << 40, 1 << 53, (1 << 63) - 1, 1 << 63)
NEGATIVE: Final = (-2, -(10**5), -(1 << 40), -(1 << 63))
FLOATS: Final = (math.nan, math.inf, -math.inf, -1.0, 0.0, 0.5, 1e-320, 1e9, 1e12, 1e30, 1.7e308, -1.7e308)
TEXTS: Final = ("", "\x00", "ü" * 7, "stale", "explorer", "trainer", "..", "both", "train", "dropped:", "9" * 400)
ENDS: Final = frozenset(f"experiment.{how}" for how in ("failed", "cancelled", "completed", "rejected", "paused"))
_encode = msgspec.msgpack.Encoder(uuid_format="bytes").encode


def whole_run(seed: int) -> tuple[UUID, Recorder]:
    """Two experiments and one event more of each type that they lack; the id of the one to look at."""
    id, recorder = written(seed, seed % 3, ended=seed % 4 == 0, forked=seed % 5 == 1)
    chance = random.Random(f"ids {seed}")
    recorder.records = [_with_tasks(record) for record in recorder.records]
    known = {decode_type(record) for record in recorder.records}
    pool = list(ids_of(recorder.records))
    for definition in definitions():
        if definition.name in known or definition.anywhere:
            continue
        golden = json.loads((GOLDEN / f"{definition.name}.v{definition.version}.json").read_text())
        fields = msgspec.msgpack.decode(bytes.fromhex(golden["value_hex"]))
        _replace(fields, lambda value: chance.choice(pool) if isinstance(value, bytes) and len(value) == 16 else value)
        _replace(fields, lambda value: chance.choice((0, 1, 2)) if type(value) is int else value)
        recorder.write(definition.decode(_encode(fields)), id)
    return id, recorder


def _with_tasks(record: Record) -> Record:
    """The record; a submission with the datasets that runs have which are driven."""
    if decode_type(record) != "experiment.submitted":
        return record
    spec = definition_named("experiment.submitted").decode(record.value).spec  # type: ignore[attr-defined]
    data = TasksetSpec(name="held_out", path="/data", rows=40, digest="d" * 64)
    sft, rft = spec.stages
    stages = (
        msgspec.structs.replace(sft, dataset=data),
        msgspec.structs.replace(rft, taskset=data, evals=(data,), eval_interval=1),
    )
    submitted = ExperimentSubmitted(spec=msgspec.structs.replace(spec, stages=stages))
    return msgspec.structs.replace(record, value=_encode(submitted))


def mutants(seed: int, share: float = 0.6) -> tuple[UUID, list[Draft], int]:
    """A run with mutants between its records, which each partition keeps in order, and how many there are."""
    id, recorder = whole_run(seed)
    chance = random.Random(f"mutants {seed}")
    pool = list(ids_of(recorder.records))
    drafts: list[Draft] = []
    made = 0
    for number, (draft, record) in enumerate(zip(recorder.drafts, recorder.records, strict=True)):
        if number < 2 or chance.random() > 0.03:
            drafts.append(Draft(draft.partition, draft.id, record.head, record.value))  # else it is gone
        often = share * (0.2 if decode_type(record) in ENDS else 1.0)  # else little is alive of most runs
        while chance.random() < often:
            drafts.append(_mutant(record, pool, chance))
            made += 1
    return id, drafts, made


def decode_type(record: Record) -> str:
    """The event type that its head says."""
    kind = msgspec.msgpack.decode(record.head)[1]
    assert isinstance(kind, str)
    return kind


def ids_of(records: list[Record]) -> Iterator[bytes]:
    """Ids that the records speak of, so that mutants can name what is there."""
    for record in records[::3]:
        for _, _, value in _leaves(msgspec.msgpack.decode(record.value)):
            if isinstance(value, bytes) and len(value) == 16:
                yield value


def _mutant(record: Record, pool: list[bytes], chance: random.Random) -> Draft:
    head, value = msgspec.msgpack.decode(record.head), msgspec.msgpack.decode(record.value)
    if chance.random() < 0.9:
        head[0] = chance.randbytes(16)
    part = head[5:8] if chance.random() < 0.1 else value
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        places = list(_leaves(part))
        if places:
            holder, key, old = chance.choice(places)
            holder[key] = _other(old, pool, chance)
    if part is not value:
        head[5:8] = part
    return Draft(record.partition, UUID(bytes=head[0]), _encode(head), _encode(value))


def _other(old: Any, pool: list[bytes], chance: random.Random) -> Any:
    """Something else of the same type."""
    match old:
        case bool():
            return not old
        case int():
            return chance.choice((*INTEGERS, *NEGATIVE, old + 1, max(0, old - 1)))
        case float():
            return chance.choice((*FLOATS, old * -1))
        case str():
            return chance.choice((*TEXTS, old + "x", "x" * 100_000 if chance.random() < 0.05 else "x"))
        case bytes() if len(old) == 16:
            return chance.choice((chance.choice(pool), chance.randbytes(16), bytes(16), old[:7]))
        case bytes():
            return chance.choice((b"", old[:-1], old + b"\0", chance.randbytes(len(old))))
        case list():
            return chance.choice(([], old * 2, old[:1], old[::-1], old[:-1]))
        case dict():
            return chance.choice(({}, {**old, "more": 1.0}, {"nan": math.nan}))
        case _:
            return chance.choice((0, 1.5, "x", chance.choice(pool), [], None))


def _leaves(value: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Every place in it: what holds it, under which key, and what is there."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(pairs):
        yield value, key, item
        yield from _leaves(item)


def _replace(value: Any, by: Any) -> None:
    for holder, key, old in list(_leaves(value)):
        if not isinstance(old, dict | list):
            holder[key] = by(old)

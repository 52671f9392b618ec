"""Writes the golden file of each event type that has none; never touches one that exists.

`.venv/bin/python -P tests/golden/make_golden.py`, after adding a type or a version. A golden file is what some release
wrote: it must stay readable for ever, so it is never edited.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
from msgspec import inspect

from rftd.streams.events.catalogue import definitions
from rftd.streams.events.registry import Definition, Event
from rftd.streams.log.arrays import Array

FOLDER = Path(__file__).with_name("events")
FITTING: dict[str, Any] = {
    "experiment.accepted.tokenizers.0": "a" * 64,
    "experiment.accepted.tokenizers.1": "",
    "eval.scored.tries": 3,
    "experience.produced.sampling.0.start": 0,
    "experience.produced.sampling.0.end": 1,
    "experience.produced.sampling.1.start": 1,
    "experience.produced.sampling.1.end": 3,
}
"""Values of fields that others must fit to, by path: an array of an example has three numbers."""


class Golden(msgspec.Struct):
    """One encoded event and what it must decode to."""

    type: str
    version: int
    value_hex: str
    fields: dict[str, Any]


def path_of(definition: Definition) -> Path:
    return FOLDER / f"{definition.name}.v{definition.version}.json"


def example(definition: Definition) -> Event:
    """An event with a telling value in each field."""
    event = _value(inspect.type_info(definition.kind), definition.name)
    assert isinstance(event, definition.kind)
    return event


def _value(kind: inspect.Type, path: str) -> Any:
    number = zlib.crc32(path.encode())  # the same on each machine, another in each field
    match kind:
        case inspect.Metadata():
            return _value(kind.type, path)
        case inspect.StructType(cls=cls) if cls is Array:
            return Array.of([number % 7, 1, 2], "u1" if path.endswith("mask") else "f4" if "prob" in path else "u4")
        case inspect.StructType():
            return kind.cls(**{field.name: _value(field.type, f"{path}.{field.name}") for field in kind.fields})
        case inspect.UnionType():
            return _value(next(item for item in kind.types if not isinstance(item, inspect.NoneType)), path)
        case inspect.VarTupleType():
            return tuple(_value(kind.item_type, f"{path}.{index}") for index in range(2))
        case inspect.TupleType():
            return tuple(_value(item, f"{path}.{index}") for index, item in enumerate(kind.item_types))
        case inspect.LiteralType(values=values):
            return values[number % len(values)]
        case inspect.DictType():
            return {"first": _value(kind.value_type, path + ".first")}
        case inspect.UUIDType():
            return UUID(int=number << 64 | 7 << 76 | 1 << 63)
        case inspect.IntType():
            return FITTING.get(path, number % 100_000)
        case inspect.FloatType(lt=1):
            return number % 8 / 8
        case inspect.FloatType(le=bound) if bound is not None and bound < 100:
            return bound * (1 + number % 8) / 8
        case inspect.FloatType():
            return 1 + number % 790 / 8
        case inspect.BoolType():
            return True
        case inspect.BytesType():
            return number.to_bytes(16, "big")
        case inspect.StrType() | inspect.AnyType():
            return FITTING.get(path, f"{path.rpartition('.')[2]} ü {number % 100}")
    raise TypeError(f"{path}: no example for {kind}")


def make(definition: Definition) -> Golden:
    """The golden of an example."""
    event = example(definition)
    value = msgspec.msgpack.Encoder(uuid_format="bytes").encode(event)
    return Golden(definition.name, definition.version, value.hex(), msgspec.to_builtins(event))


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for definition in definitions():
        path = path_of(definition)
        if not path.exists():
            path.write_bytes(msgspec.json.format(msgspec.json.encode(make(definition)), indent=1) + b"\n")
            print("wrote", path.name)

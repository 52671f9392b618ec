"""TensorBoard's event files, read as its own reader does: record by record, with both checksums."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple


class Scalar(NamedTuple):
    """One value of an event file."""

    tag: str
    step: int
    value: float


def scalars_of(path: Path) -> list[Scalar]:
    """The scalars in the order of the file."""
    return [scalar for event in _events(path) for scalar in _scalars(event)]


def texts_of(path: Path) -> list[tuple[str, int, str]]:
    """(tag, step, text) in the order of the file."""
    found = []
    for event in _events(path):
        for value in _values(event):
            if 8 in value:
                found.append((value[1][0].decode(), event.get(2, [0])[0], _fields(value[8][0])[8][0].decode()))
    return found


def crc32c(data: bytes) -> int:
    """CRC-32C by the definition, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def _events(path: Path) -> Iterator[dict[int, list[Any]]]:
    data = path.read_bytes()
    place = 0
    while place < len(data):
        head = data[place : place + 8]
        (length,) = struct.unpack("<Q", head)
        assert struct.unpack("<I", data[place + 8 : place + 12])[0] == _masked(head)
        body = data[place + 12 : place + 12 + length]
        assert struct.unpack("<I", data[place + 12 + length : place + 16 + length])[0] == _masked(body)
        place += 16 + length
        yield _fields(body)


def _masked(data: bytes) -> int:
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _scalars(event: dict[int, list[Any]]) -> Iterator[Scalar]:
    for value in _values(event):
        if 2 in value:
            yield Scalar(value[1][0].decode(), event.get(2, [0])[0], value[2][0])


def _values(event: dict[int, list[Any]]) -> list[dict[int, list[Any]]]:
    return [_fields(value) for summary in event.get(5, []) for value in _fields(summary).get(1, [])]


def _fields(data: bytes) -> dict[int, list[Any]]:
    """The fields of a protobuf message by their numbers."""
    fields: dict[int, list[Any]] = {}
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        wire_type = key & 7
        value: Any
        if wire_type == 0:
            value, place = _varint(data, place)
        elif wire_type == 1:
            (value,) = struct.unpack("<d", data[place : place + 8])
            place += 8
        elif wire_type == 5:
            (value,) = struct.unpack("<f", data[place : place + 4])
            place += 4
        else:
            length, place = _varint(data, place)
            value = data[place : place + length]
            place += length
        fields.setdefault(key >> 3, []).append(value)
    return fields


def _varint(data: bytes, place: int) -> tuple[int, int]:
    number = 0
    shift = 0
    while True:
        byte = data[place]
        place += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return number, place

"""`TensorBoard`: event files in the guide's folder, read by TensorBoard while growing.

The records are encoded here without TensorBoard or protobuf:

    record  length (8 bytes), its checksum (4), the message `Event`, its checksum (4); all little-endian
    Event   1 wall_time, 2 step, 3 file_version, 5 summary
    Summary 1 value: 1 tag, 2 simple_value, 8 tensor, 9 metadata

The fields follow tensorflow/core/util/event.proto and tensorflow/core/framework/summary.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from rftd.workers.tracking.kept_file import KeptFiles
from rftd.workers.tracking.point import Point
from rftd.workers.tracking.sample_text import markdown_table
from rftd.workers.tracking.tracker import Kept, Opening

_POLYNOMIAL: Final = 0x82F63B78  # Castagnoli, reversed
"""Polynomial of CRC-32C."""
_MASK: Final = 0xA282EAD8
"""Constant added to a checksum by the format of the records."""
_BITS_32: Final = 0xFFFFFFFF
"""Mask of 32 bits."""
_STRING: Final = 7
"""TensorFlow's type number of strings."""


def _table() -> tuple[int, ...]:
    """Returns the remainders of all bytes, for the checksum."""
    table = []
    for byte in range(256):
        remainder = byte
        for _ in range(8):
            remainder = (remainder >> 1) ^ (_POLYNOMIAL if remainder & 1 else 0)
        table.append(remainder)
    return tuple(table)


_TABLE: Final = _table()
"""Remainder of each byte."""


def version_record(time_s: float) -> bytes:
    """Returns the first record of a file, with the format's version."""
    return _record(_time(time_s) + _bytes(3, b"brain.Event:2"))


def scalars_record(time_s: float, step: int, figures: Mapping[str, float]) -> bytes:
    """Returns the record of a step's figures, as float32."""
    summaries = (_bytes(1, _bytes(1, name.encode()) + _float(2, figure)) for name, figure in figures.items())
    return _record(_time(time_s) + _number(2, step) + _bytes(5, b"".join(summaries)))


def text_record(time_s: float, step: int, tag: str, text: str) -> bytes:
    """Returns the record of a text, shown by TensorBoard as Markdown under `Text`."""
    plugin = _bytes(1, _bytes(1, b"text"))
    shape = _bytes(2, _bytes(2, _number(1, 1)))
    tensor = _number(1, _STRING) + shape + _bytes(8, text.encode())
    summary = _bytes(1, tag.encode()) + _bytes(8, tensor) + _bytes(9, plugin)
    return _record(_time(time_s) + _number(2, step) + _bytes(5, _bytes(1, summary)))


def _record(event: bytes) -> bytes:
    """Returns an event as a record: length, checksum, event, checksum."""
    length = struct.pack("<Q", len(event))
    return length + struct.pack("<I", _checksum(length)) + event + struct.pack("<I", _checksum(event))


def _checksum(content: bytes) -> int:
    """Returns the masked CRC-32C of the bytes."""
    crc = _BITS_32
    for byte in content:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= _BITS_32
    return (((crc >> 15) | (crc << 17)) + _MASK) & _BITS_32


def _time(time_s: float) -> bytes:
    """Returns the field of an event's time."""
    return _key(1, 1) + struct.pack("<d", time_s)


def _float(field: int, number: float) -> bytes:
    """Returns a field with a 32-bit floating-point number."""
    try:
        packed = struct.pack("<f", number)
    except OverflowError:  # beyond float32, whose own conversion yields an infinity
        packed = struct.pack("<f", float("inf") if number > 0 else float("-inf"))
    return _key(field, 5) + packed


def _number(field: int, number: int) -> bytes:
    """Returns a field with a whole number."""
    return _key(field, 0) + _varint(number)


def _bytes(field: int, content: bytes) -> bytes:
    """Returns a field with bytes."""
    return _key(field, 2) + _varint(len(content)) + content


def _key(field: int, wire_type: int) -> bytes:
    """Returns the head of a field: number and wire type of protobuf."""
    return _varint(field << 3 | wire_type)


def _varint(number: int) -> bytes:
    """Returns a whole number in protobuf's variable length."""
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    digits.append(number)
    return bytes(digits)


_NAME: Final = "events.out.tfevents"
"""The prefix by which TensorBoard recognises an event file."""


class TensorBoard:
    """Writes `monitor/tensorboard/RUN/events.out.tfevents.ID`; with a single run there is no folder RUN."""

    sure_at_once = True
    """True: `settle` confirms storage, because the files are synchronised."""

    def __init__(self, opening: Opening) -> None:
        """Writes below the folder of `opening`, an event file for each run."""
        self._run = opening.run
        """The tracked experiment."""
        name = f"{_NAME}.{self._run.short_id}"
        self._files = KeptFiles({role: opening.folder / role / name for role in self._run.roles})
        """Event files, by role."""
        self._new: list[str] = []
        """Runs whose file has no record yet: the first record has the time of the first point."""

    def open(self, kept: Kept) -> None:
        """Continues the files from the state last returned by `settle`."""
        self._new = self._files.open(kept)

    def write(self, points: Sequence[Point]) -> None:
        """Appends a record for each figure, table or remark."""
        if points:
            self._begin(points[0].time_ns / 1e9)
        for point in points:
            time_s = point.time_ns / 1e9
            if point.table:
                if not point.samples:
                    continue
                record = text_record(time_s, point.step, point.table, markdown_table(point.samples))
            elif point.remark:
                record = text_record(time_s, point.step, "remarks", point.remark)
            else:
                record = scalars_record(time_s, point.step, point.figures)
            self._files.append(self._run.run_of(point), record)

    def settle(self, *, surely: bool) -> Kept:
        """Confirms that all records survive a kill; returns the files' state for `open`."""
        return dict(self._files.settle())

    def close(self, ended: str) -> None:
        """Closes the files."""
        self._files.close()

    def _begin(self, time_s: float) -> None:
        """Begins new files with version, experiment and configuration."""
        config = msgspec.json.format(msgspec.json.encode(self._run.config)).decode()
        text = f"{self._run.project}/{self._run.name}, experiment {self._run.experiment}, sha256 {self._run.digest}"
        for role in self._new:
            self._files.append(role, version_record(time_s))
            self._files.append(role, text_record(time_s, 0, "experiment", text))
            self._files.append(role, text_record(time_s, 0, "config", f"```json\n{config}\n```"))
        self._new = []

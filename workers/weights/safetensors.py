"""The safetensors format: a length, a JSON header, the tensors' bytes one after the other."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from rftd.ops.decoding import json_decoder
from rftd.ops.errors import WorkError
from rftd.workers.weights.tensor_bytes import TensorBytes, TensorLayout, Weights, size_bytes

_NAMES: Final = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "uint16": "U16",
    "int16": "I16",
    "float16": "F16",
    "bfloat16": "BF16",
    "uint32": "U32",
    "int32": "I32",
    "float32": "F32",
    "uint64": "U64",
    "int64": "I64",
    "float64": "F64",
}
_DTYPES: Final = {code: name for name, code in _NAMES.items()}
_METADATA: Final = "__metadata__"
_LENGTH_BYTES: Final = 8


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def write(weights: Weights, path: Path) -> None:
    """Writes the file; it is not synced. Names of one tensor are written twice: give each once. Raises OSError."""
    with path.open("wb") as file:
        file.write(header_of({name: TensorLayout(each.dtype, each.shape) for name, each in weights.items()}))
        for each in weights.values():
            file.write(each.data)


def header_of(layouts: Mapping[str, TensorLayout]) -> bytes:
    """The bytes of a file before those of its tensors, which follow one another in this order."""
    header: dict[str, _Entry | Mapping[str, str]] = {_METADATA: {"format": "pt"}}
    end = 0
    for name, each in layouts.items():
        begin = end
        end = end + size_bytes(each.dtype, each.shape)
        header[name] = _Entry(dtype=_NAMES[each.dtype], shape=each.shape, data_offsets=(begin, end))
    encoded = msgspec.json.encode(header)
    # Filled up to 8 bytes, as the format asks, so that tensors are aligned where the file is mapped.
    encoded += b" " * (-len(encoded) % 8)
    return len(encoded).to_bytes(_LENGTH_BYTES, "little") + encoded


class TensorPlace(NamedTuple):
    """A tensor's place in a file."""

    layout: TensorLayout
    begin_bytes: int
    """Counted from the file's first byte."""


def places(path: Path) -> dict[str, TensorPlace]:
    """The tensors of a file, of which only the header is read. Raises WorkError if one lies beyond the file's end."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            begin = _LENGTH_BYTES + int.from_bytes(file.read(_LENGTH_BYTES), "little")
            if begin > size:
                raise ValueError(f"its header is of {begin} bytes, the file of {size}")
            entries = _entries(file.read(begin - _LENGTH_BYTES))
        for each in entries.values():
            _check(each, size - begin)
    except (OSError, ValueError, KeyError, msgspec.DecodeError) as error:
        raise WorkError(f"weights cannot be read: {error}", where=str(path)) from error
    return {
        name: TensorPlace(TensorLayout(_DTYPES[each.dtype], each.shape), begin + each.data_offsets[0])
        for name, each in entries.items()
    }


def read(path: Path) -> dict[str, TensorBytes]:
    """The tensors, mapped: nothing is read yet, and nobody who writes to them changes the file. Raises WorkError."""
    try:
        with path.open("rb") as file:
            # Private: torch asks for writable memory, and what it writes must not reach the file.
            mapped = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        data = memoryview(mapped)
        begin = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
        entries = _entries(data[_LENGTH_BYTES:begin])
        return {name: _tensor(entry, data[begin:]) for name, entry in entries.items()}
    except (OSError, ValueError, KeyError, msgspec.DecodeError) as error:
        raise WorkError(f"weights cannot be read: {error}", where=str(path)) from error


def _entries(header: bytes | memoryview) -> dict[str, _Entry]:
    found = json_decoder(dict[str, msgspec.Raw]).decode(header)
    found.pop(_METADATA, None)
    return {name: json_decoder(_Entry).decode(raw) for name, raw in found.items()}


def _check(entry: _Entry, size: int) -> None:
    begin, end = entry.data_offsets
    if not 0 <= begin <= end <= size or end - begin != size_bytes(_DTYPES[entry.dtype], entry.shape):
        raise ValueError(f"a tensor lies at {begin}..{end} of {size} bytes")


def _tensor(entry: _Entry, data: memoryview) -> TensorBytes:
    _check(entry, len(data))
    begin, end = entry.data_offsets
    return TensorBytes(_DTYPES[entry.dtype], entry.shape, data[begin:end])

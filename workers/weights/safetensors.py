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
"""The format's type codes, by torch's names of types."""
_DTYPES: Final = {code: name for name, code in _NAMES.items()}
"""torch's names of types, by the format's type codes."""
_METADATA: Final = "__metadata__"
"""Name of the header's only entry that is not a tensor."""
_LENGTH_BYTES: Final = 8
"""Size of the header's length at the beginning of a file."""


class _HeaderLine(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor's entry in the header."""

    dtype: str
    """The format's type code."""
    shape: tuple[int, ...]
    """Sizes along the dimensions."""
    data_offsets: tuple[int, int]
    """First and end offset of the tensor's bytes, counted behind the header."""


def write(weights: Weights, path: Path) -> None:
    """Writes the file without syncing. Tied names are written twice: pass each tensor once. Raises OSError."""
    with path.open("wb") as file:
        file.write(header_of({name: TensorLayout(tensor.dtype, tensor.shape) for name, tensor in weights.items()}))
        for tensor in weights.values():
            file.write(tensor.data)


def header_of(layouts: Mapping[str, TensorLayout]) -> bytes:
    """Returns the header of a file with tensors of these layouts, stored in this order."""
    header: dict[str, _HeaderLine | Mapping[str, str]] = {_METADATA: {"format": "pt"}}
    end = 0
    for name, layout in layouts.items():
        begin = end
        end = end + size_bytes(layout.dtype, layout.shape)
        header[name] = _HeaderLine(dtype=_NAMES[layout.dtype], shape=layout.shape, data_offsets=(begin, end))
    encoded = msgspec.json.encode(header)
    # Padded to 8 bytes, as the format requires, so that tensors are aligned in a mapped file.
    encoded += b" " * (-len(encoded) % 8)
    return len(encoded).to_bytes(_LENGTH_BYTES, "little") + encoded


class TensorPlace(NamedTuple):
    """A tensor's location in a file: dtype and shape, and the offset of the first byte."""

    layout: TensorLayout
    """dtype and shape."""
    begin_bytes: int
    """Offset from the file's first byte."""


def places(path: Path) -> dict[str, TensorPlace]:
    """Returns the tensors of a file, reading only the header. Raises WorkError for a tensor beyond the file's end."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            begin = _LENGTH_BYTES + int.from_bytes(file.read(_LENGTH_BYTES), "little")
            if begin > size:
                raise ValueError(f"its header is of {begin} bytes, the file of {size}")
            lines = _header_lines(file.read(begin - _LENGTH_BYTES))
        for line in lines.values():
            _check(line, size - begin)
    except (OSError, ValueError, KeyError, msgspec.DecodeError) as error:
        raise WorkError(f"weights cannot be read: {error}", where=str(path)) from error
    return {
        name: TensorPlace(TensorLayout(_DTYPES[line.dtype], line.shape), begin + line.data_offsets[0])
        for name, line in lines.items()
    }


def read(path: Path) -> dict[str, TensorBytes]:
    """Returns the tensors, mapped and not read yet; writes do not change the file. Raises WorkError."""
    try:
        with path.open("rb") as file:
            # Private: torch requires writable memory, and writes must not reach the file.
            mapped = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        content = memoryview(mapped)
        begin = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "little")
        lines = _header_lines(content[_LENGTH_BYTES:begin])
        return {name: _tensor(line, content[begin:]) for name, line in lines.items()}
    except (OSError, ValueError, KeyError, msgspec.DecodeError) as error:
        raise WorkError(f"weights cannot be read: {error}", where=str(path)) from error


def _header_lines(header: bytes | memoryview) -> dict[str, _HeaderLine]:
    """Returns the tensors' lines of a header, without the metadata."""
    raw_lines = json_decoder(dict[str, msgspec.Raw]).decode(header)
    raw_lines.pop(_METADATA, None)
    return {name: json_decoder(_HeaderLine).decode(raw) for name, raw in raw_lines.items()}


def _check(line: _HeaderLine, size: int) -> None:
    """Raises ValueError if a tensor's bytes lie outside of the `size` bytes behind the header, or do not fit dtype and
    shape.
    """
    begin, end = line.data_offsets
    if not 0 <= begin <= end <= size or end - begin != size_bytes(_DTYPES[line.dtype], line.shape):
        raise ValueError(f"a tensor lies at {begin}..{end} of {size} bytes")


def _tensor(line: _HeaderLine, content: memoryview) -> TensorBytes:
    """Returns a tensor as a view of the file's bytes behind the header."""
    _check(line, len(content))
    begin, end = line.data_offsets
    return TensorBytes(_DTYPES[line.dtype], line.shape, content[begin:end])

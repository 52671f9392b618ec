"""Numeric arrays as they travel in events: little-endian bytes with dtype and shape, never lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from rftd.ops.errors import CodecError

DTYPES: Final = {"u1": 1, "u4": 4, "i4": 4, "f4": 4, "f8": 8}
_TYPES: Final = {name: np.dtype("<" + name) for name in DTYPES}
_NUMPY: Final = {name: np.dtype("<" + name) for name in DTYPES}


class Array(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A dense array: `dtype` is one of u1 u4 i4 f4 f8 (little-endian), `data` is C-contiguous."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes
    artifact: str = ""
    """sha256 of the bytes in the artifact store, if they are too many for the event; `data` is then empty."""

    @classmethod
    def of(cls, values: Any, dtype: str) -> Self:
        """Packs anything numpy accepts as an array of `dtype`."""
        packed = np.ascontiguousarray(values, dtype=_TYPES[dtype])
        return cls(dtype, packed.shape, packed.tobytes())

    def view(self) -> NDArray[Any]:
        """A read-only numpy view, without a copy. Raises CodecError if the parts do not fit together."""
        if self.artifact:
            raise CodecError(f"array of shape {self.shape} lies in artifact {self.artifact}", fix="load it first")
        size, count = DTYPES.get(self.dtype), 1
        for extent in self.shape:
            if extent < 0:
                raise CodecError(f"array of shape {self.shape} has a negative extent")
            count *= extent
        if size is None or len(self.data) != count * size:
            raise CodecError(
                f"array of dtype {self.dtype!r} and shape {self.shape} carries {len(self.data)} bytes",
                fix="the record was damaged or written by a foreign program",
            )
        flat = np.frombuffer(self.data, _NUMPY[self.dtype])
        return flat if len(self.shape) == 1 else flat.reshape(self.shape)

    def stored(self, put: Callable[[bytes], str]) -> Self:
        """The same array by reference: `put` keeps its bytes and gives their sha256."""
        return type(self)(self.dtype, self.shape, b"", put(self.data))

    def loaded(self, read: Callable[[str], bytes]) -> Self:
        """The same array with its bytes, which `read` finds by their sha256 where they were stored."""
        return type(self)(self.dtype, self.shape, read(self.artifact)) if self.artifact else self

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 0

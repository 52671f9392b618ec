"""Numeric arrays in events: little-endian bytes with dtype and shape, never lists."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

import msgspec
from msgspec import Meta

from rftd.ops.errors import CodecError, NotFoundError

if TYPE_CHECKING:
    # At run time numpy is imported where arrays are made: it is slow to import, and most importers only name event
    # types.
    import numpy as np
    from numpy.typing import NDArray

DTYPES: Final = {"u1": 1, "u4": 4, "i4": 4, "f4": 4, "f8": 8}
"""Bytes of a number, by the types of arrays."""
_DROPPED: Final = "dropped:"
"""Beginning of the artifact's text if the array's bytes were dropped."""
_ARTIFACT: Final = re.compile(rf"(?:{_DROPPED})?[0-9a-f]{{64}}")
"""Form of an artifact's text: a sha256, possibly of dropped bytes."""


class Array(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A dense array: `dtype` is one of u1 u4 i4 f4 f8 (little-endian), `data` is C-contiguous."""

    dtype: str
    shape: Annotated[tuple[Annotated[int, Meta(ge=0, le=1 << 40)], ...], Meta(max_length=8)]
    data: bytes
    artifact: str = ""
    """sha256 of the bytes in the artifact store, for arrays too large for an event; `data` is then empty.

    With the prefix `dropped:`, the sha256 of deleted bytes.
    """

    def __post_init__(self) -> None:
        """Raises CodecError unless dtype, shape and data agree."""
        if self.artifact:
            # Checked here, not by a constraint of the field: few arrays have an artifact, and a decoder would check all
            # of them.
            if not _ARTIFACT.fullmatch(self.artifact):
                raise CodecError(f"array of shape {self.shape} lies in {self.artifact!r}, which is not a sha256")
            return
        size = DTYPES.get(self.dtype)
        # Python integers: a product of extents in numpy may overflow, and equal the length of a short array by chance.
        count = 1
        for extent in self.shape:
            if extent < 0:
                raise CodecError(f"array of shape {self.shape} has a negative extent")
            count *= extent
        if size is None or len(self.data) != count * size:
            raise CodecError(
                f"array of dtype {self.dtype!r} and shape {self.shape} carries {len(self.data)} bytes",
                fix="the record was damaged or written by a foreign program",
            )

    @classmethod
    def of(cls, values: Any, dtype: str) -> Self:
        """Packs any array-like of numpy as an array of `dtype`."""
        import numpy as np

        packed = np.ascontiguousarray(values, dtype=_type_of(dtype))
        return cls(dtype, packed.shape, packed.tobytes())

    def view(self) -> NDArray[Any]:
        """Returns a read-only numpy view, without a copy.

        Raises CodecError if the bytes are in the artifact store, NotFoundError if the bytes were dropped.
        """
        import numpy as np

        # An empty view would look like an array without tokens, and be trained as one.
        if self.artifact:
            self._check_not_dropped()
            raise CodecError(f"array of shape {self.shape} lies in artifact {self.artifact}", fix="load it first")
        flat = np.frombuffer(self.data, _type_of(self.dtype))
        return flat if len(self.shape) == 1 else flat.reshape(self.shape)

    def within(self, largest: float) -> bool:
        """True if no number's absolute value exceeds `largest`, and none is NaN. Loads the bytes as `view` does."""
        import numpy as np

        return bool((np.abs(self.view()) <= largest).all())

    @property
    def is_dropped(self) -> bool:
        """True if the array's bytes were dropped from the log."""
        return self.artifact.startswith(_DROPPED)

    def dropped(self) -> Self:
        """Returns the array without its bytes, with their sha256 instead; an empty or already dropped array stays as it
        is.
        """
        if self.is_dropped or not (self.data or self.artifact):
            return self
        sha256 = self.artifact or hashlib.sha256(self.data).hexdigest()
        return type(self)(self.dtype, self.shape, b"", _DROPPED + sha256)

    def stored(self, put: Callable[[bytes], str]) -> Self:
        """Returns the array by reference; `put` stores the bytes and returns their sha256."""
        return type(self)(self.dtype, self.shape, b"", put(self.data))

    def loaded(self, read: Callable[[str], bytes]) -> Self:
        """Returns the array with its bytes, read by `read` from the sha256 of stored arrays.

        Raises NotFoundError if the bytes were dropped.
        """
        self._check_not_dropped()
        return type(self)(self.dtype, self.shape, read(self.artifact)) if self.artifact else self

    def _check_not_dropped(self) -> None:
        """Raises NotFoundError if the bytes were dropped from the log."""
        if self.is_dropped:
            raise NotFoundError(
                f"the bytes of an array of shape {self.shape} were dropped from the log; their sha256 is "
                f"{self.artifact.removeprefix(_DROPPED)}",
                fix="bring them back with rftd restore if the experiment was archived",
            )

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 0


@cache
def _type_of(dtype: str) -> np.dtype[Any]:
    """Returns numpy's little-endian type of a dtype."""
    import numpy as np

    assert dtype in DTYPES, dtype
    return np.dtype("<" + dtype)

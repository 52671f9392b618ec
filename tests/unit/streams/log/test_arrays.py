"""Numeric arrays as they travel in events."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from rftd.ops.errors import CodecError
from rftd.streams.log.arrays import DTYPES, Array


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_array_comes_back_read_only_and_equal(dtype: str) -> None:
    values = np.arange(6).reshape(2, 3)
    packed = Array.of(values, dtype)
    assert (packed.shape, len(packed), len(packed.data)) == ((2, 3), 2, 6 * DTYPES[dtype])
    view = packed.view()
    assert view.dtype == np.dtype("<" + dtype)
    np.testing.assert_array_equal(view, values)
    with pytest.raises(ValueError, match="read-only"):
        view[0, 0] = 1


def test_bytes_are_little_endian_and_contiguous() -> None:
    assert Array.of([1, 258], "u4").data == bytes([1, 0, 0, 0, 2, 1, 0, 0])
    assert Array.of(np.arange(6).reshape(2, 3).T, "u1").data == bytes([0, 3, 1, 4, 2, 5])


def test_an_empty_array_is_fine() -> None:
    assert Array.of([], "f4").view().shape == (0,)
    assert len(Array("f4", (), bytes(4))) == 0


@pytest.mark.parametrize(
    "broken",
    [
        ("u4", (3,), bytes(11)),
        ("u4", (-1,), b""),
        ("O", (1,), bytes(8)),
        ("u4", (2**40, 2**40), bytes(8)),
        ("f4", (-2, -2), bytes(16)),
        ("u4", (3,), b"", "f" * 63),
        ("u4", (3,), b"", "kept:" + "f" * 64),
        ("u4", (3,), b"", "F" * 64),
    ],
)
def test_parts_that_do_not_fit_are_refused(broken: tuple[Any, ...]) -> None:
    with pytest.raises(CodecError):
        Array(*broken)
    with pytest.raises((CodecError, msgspec.ValidationError)):
        msgspec.msgpack.decode(msgspec.msgpack.encode(broken), type=Array)

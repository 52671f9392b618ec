"""How a value lies in its row: as it was appended, compressed, or without its payload.

A page holds 16 KiB, and a row of more than half of it would leave the rest empty. So longer values are compressed, by
snappy, which takes some ten microseconds; where that is not enough for two rows to share a page, by zstd, which takes
ten times as long. What cannot be compressed stays as it is.
"""

from __future__ import annotations

from typing import Final

import cramjam

SNAPPY: Final = 1
"""The bytes are a raw snappy block."""
THIN: Final = 2
"""The payload was dropped: the value names its arrays by their sha256, and is not what the hash chain covers."""
ZSTD: Final = 4
"""The bytes are a zstd frame."""
_FORMS: Final = (0, SNAPPY, ZSTD, THIN, THIN | SNAPPY, THIN | ZSTD)

_COMPRESS_FROM_BYTES: Final = 4096
_COMPRESS_TO_BYTES: Final = 64 * 1024
"""Longer values continue on pages of their own, of which they fill most."""
_HALF_PAGE_BYTES: Final = 7900
"""Two rows with so long values share a page."""
_WHOLE_PAGE_BYTES: Final = 14 * 1024
_WORTH_IT: Final = 0.9
"""The largest share of its size to which a value may shrink; what snappy leaves larger, zstd hardly shrinks either."""
_ZSTD_LEVEL: Final = 1


def packed(value: bytes, *, thin: bool = False) -> tuple[bytes, int]:
    """The bytes for the row, and their form."""
    form = THIN if thin else 0
    if not _COMPRESS_FROM_BYTES <= len(value) <= _COMPRESS_TO_BYTES:
        return value, form
    small = bytes(cramjam.snappy.compress_raw(value))
    if len(small) > _WORTH_IT * len(value):
        return value, form
    if _HALF_PAGE_BYTES < len(small) < _WHOLE_PAGE_BYTES:
        smaller = bytes(cramjam.zstd.compress(value, _ZSTD_LEVEL))
        if len(smaller) <= _HALF_PAGE_BYTES:
            return smaller, form | ZSTD
    return small, form | SNAPPY


def unpacked(stored: bytes, form: int) -> bytes:
    """The value of a row. Raises ValueError for bytes that are none of that form."""
    if form not in _FORMS:
        raise ValueError(f"the row's form is {form}, which this release does not know")
    if not form & (SNAPPY | ZSTD):
        return stored
    try:
        if form & SNAPPY:
            size_bytes = cramjam.snappy.decompress_raw_len(stored)
            if size_bytes > _COMPRESS_TO_BYTES:
                raise ValueError(f"the row would become {size_bytes} bytes, more than are ever compressed")
            return bytes(cramjam.snappy.decompress_raw(stored))
        value = bytearray(_COMPRESS_TO_BYTES)
        size_bytes = cramjam.zstd.decompress_into(stored, value)
        return bytes(value[:size_bytes])
    except cramjam.DecompressionError as error:
        raise ValueError(f"the row cannot be decompressed: {error}") from error

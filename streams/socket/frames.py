"""Frames: a length as u32 little-endian, then so many bytes of MessagePack."""

from __future__ import annotations

from rftd.ops import limits
from rftd.ops.errors import CodecError

_PREFIX_BYTES = 4


def frame(body: bytes) -> bytes:
    """The frame around `body`. Raises CodecError if it is over `limits.FRAME_SIZE_BYTES`."""
    _check(len(body))
    return len(body).to_bytes(_PREFIX_BYTES, "little") + body


class FrameReader:
    """Cuts a byte stream into bodies; holds at most one frame and one read of the socket."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The bodies that `data` completes. Raises CodecError for a frame over the limit."""
        buffer = self._buffer
        buffer += data
        bodies: list[bytes] = []
        start = 0
        while len(buffer) - start >= _PREFIX_BYTES:
            end = start + _PREFIX_BYTES + int.from_bytes(buffer[start : start + _PREFIX_BYTES], "little")
            _check(end - start - _PREFIX_BYTES)
            if end > len(buffer):
                break
            with memoryview(buffer) as view:  # one copy, not two
                bodies.append(bytes(view[start + _PREFIX_BYTES : end]))
            start = end
        if start:
            del buffer[:start]
        return bodies


def _check(size: int) -> None:
    if size > limits.FRAME_SIZE_BYTES:
        raise CodecError(
            f"a frame of {size} bytes is over the limit of {limits.FRAME_SIZE_BYTES}",
            fix="the other side of the log's socket is no rftd, or another release of it",
        )

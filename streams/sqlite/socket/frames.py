"""Frames: a length as u32 little-endian, then so many bytes of MessagePack."""

from __future__ import annotations

from typing import Final

from rftd.ops import limits
from rftd.ops.errors import CodecError

PREFIX_BYTES: Final = 4
_ROOM_BYTES: Final = 256 * 1024
"""The room for one read of the socket, a little more than the kernel's buffer holds by default."""
_KEPT_BYTES: Final = 8 * limits.MIB
"""The longest frame whose memory is kept for the next one; that of a longer one is given back once it was read."""


def seal(frame: bytearray) -> None:
    """Writes the length into the frame's first `PREFIX_BYTES`. Raises CodecError over `limits.FRAME_SIZE_BYTES`."""
    size = len(frame) - PREFIX_BYTES
    _check(size)
    frame[:PREFIX_BYTES] = size.to_bytes(PREFIX_BYTES, "little")


class FrameReader:
    """Cuts a byte stream into bodies; holds at most one frame and one read of the socket.

    The socket writes to `room`, and the bodies are views of it: 60 MB/s of experiences are copied once, by who decodes.
    """

    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(_ROOM_BYTES))
        self._start = self._end = 0
        """The range of bytes that were written there and are in no body yet."""

    def room(self) -> memoryview:
        """The memory for the next bytes; ends the use of the bodies that `filled` gave."""
        pending = self._end - self._start
        size = len(self._buffer)
        wanted = self._wanted()
        if not pending:
            self._start = self._end = 0
            if size > _KEPT_BYTES:
                self._buffer = memoryview(bytearray(_ROOM_BYTES))
        elif self._start + wanted > size:
            # It grows with what arrives, not with what a prefix claims.
            larger = self._buffer if wanted <= size else memoryview(bytearray(min(wanted, max(2 * pending, size))))
            larger[:pending] = self._buffer[self._start : self._end]
            self._buffer = larger
            self._start = 0
            self._end = pending
        return self._buffer[self._end :]

    def filled(self, size_bytes: int) -> list[memoryview]:
        """The bodies that are complete now that so many bytes were written. Raises CodecError for one over the limit.

        They are good until `room` is asked for again.
        """
        self._end += size_bytes
        bodies: list[memoryview] = []
        while self._end - self._start >= (wanted := self._wanted()):
            bodies.append(self._buffer[self._start + PREFIX_BYTES : self._start + wanted])
            self._start += wanted
        return bodies

    def _wanted(self) -> int:
        """The length of the frame that begins at the start; that of its prefix while that is not whole."""
        body = self._start + PREFIX_BYTES
        if self._end < body:
            return PREFIX_BYTES
        size = int.from_bytes(self._buffer[self._start : body], "little")
        _check(size)
        return PREFIX_BYTES + size


def _check(size: int) -> None:
    if size > limits.FRAME_SIZE_BYTES:
        raise CodecError(
            f"a frame of {size} bytes is over the limit of {limits.FRAME_SIZE_BYTES}",
            fix="the other side of the log's socket is no rftd, or another release of it",
        )

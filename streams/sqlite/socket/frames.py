"""Frames: a length as u32 little-endian, followed by that number of bytes of MessagePack."""

from __future__ import annotations

from typing import Final

from rftd.ops import limits
from rftd.ops.errors import CodecError

PREFIX_BYTES: Final = 4
"""Size of the length before a frame's body."""
_ROOM_BYTES: Final = 256 * 1024
"""Size of the buffer for one read of the socket, a little more than the kernel's default buffer."""
_KEPT_BYTES: Final = 8 * limits.MIB
"""Maximum buffer size reused for the next frame; larger buffers are released after use."""


def seal(frame: bytearray) -> None:
    """Writes the length into the frame's first `PREFIX_BYTES`. Raises CodecError over `limits.FRAME_SIZE_BYTES`."""
    size = len(frame) - PREFIX_BYTES
    _check(size)
    frame[:PREFIX_BYTES] = size.to_bytes(PREFIX_BYTES, "little")


class FrameReader:
    """Cuts a byte stream into bodies; holds at most one frame and one read of the socket.

    The socket writes to `room`, and the bodies are views of the buffer: 60 MB/s of experiences are copied once, by the
    decoder.
    """

    def __init__(self) -> None:
        """Begins with an empty buffer."""
        self._buffer = memoryview(bytearray(_ROOM_BYTES))
        self._start = self._end = 0
        """Start of the bytes received and not yet returned in a body."""

    def room(self) -> memoryview:
        """Returns the memory for the next bytes; invalidates the bodies returned by `filled`."""
        pending = self._end - self._start
        size = len(self._buffer)
        frame_bytes = self._frame_size()
        if not pending:
            self._start = self._end = 0
            if size > _KEPT_BYTES:
                self._buffer = memoryview(bytearray(_ROOM_BYTES))
        elif self._start + frame_bytes > size:
            # The buffer grows with the bytes arrived, not with the length claimed by a prefix.
            larger = (
                self._buffer if frame_bytes <= size else memoryview(bytearray(min(frame_bytes, max(2 * pending, size))))
            )
            larger[:pending] = self._buffer[self._start : self._end]
            self._buffer = larger
            self._start = 0
            self._end = pending
        return self._buffer[self._end :]

    def filled(self, size_bytes: int) -> list[memoryview]:
        """Returns the bodies completed by the `size_bytes` just written. Raises CodecError for one over the limit.

        The bodies stay valid until the next call of `room`.
        """
        self._end += size_bytes
        bodies: list[memoryview] = []
        while self._end - self._start >= (frame_bytes := self._frame_size()):
            bodies.append(self._buffer[self._start + PREFIX_BYTES : self._start + frame_bytes])
            self._start += frame_bytes
        return bodies

    def _frame_size(self) -> int:
        """Returns the length of the frame at the start of the buffer; the prefix's length while the prefix is
        incomplete.
        """
        body = self._start + PREFIX_BYTES
        if self._end < body:
            return PREFIX_BYTES
        size = int.from_bytes(self._buffer[self._start : body], "little")
        _check(size)
        return PREFIX_BYTES + size


def _check(size: int) -> None:
    """Raises CodecError for a body over the limit."""
    if size > limits.FRAME_SIZE_BYTES:
        raise CodecError(
            f"a frame of {size} bytes is over the limit of {limits.FRAME_SIZE_BYTES}",
            fix="the other side of the log's socket is not rftd, or is another release",
        )

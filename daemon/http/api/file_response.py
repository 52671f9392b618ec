"""`FileStream`: a response with the bytes of an open file, whole or one range, read while they are sent."""

from __future__ import annotations

import asyncio
import base64
import os
import re
from typing import Final, NamedTuple

from fastapi import Request, Response
from starlette.types import Receive, Scope, Send

from rftd.daemon.http.api.departure import client_gone
from rftd.ops import limits
from rftd.storage.files.checkpoint_file import OpenedFile

BINARY: Final = "application/octet-stream"
"""Media type of a file of unknown content."""
_RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
"""A `Range` header of one range; the groups are its first and last byte, possibly empty."""
_UNSAFE_CHARACTERS: Final = re.compile(r"[^A-Za-z0-9._-]")
"""Characters replaced in the name of a downloaded file."""


class _Span(NamedTuple):
    """Bytes `first` to `last` of a file, both included; empty with `last` before `first`."""

    first: int
    """Index of the first byte in the file."""
    last: int
    """Index of the last byte in the file."""


def file_response(request: Request, file: OpenedFile) -> Response:
    """Returns the response for an open file, closed at its end: 200, 206 for a range, 304, or 416."""
    etag = f'"{file.sha256}"'
    digest = base64.b64encode(bytes.fromhex(file.sha256)).decode()
    headers = {
        "ETag": etag,
        "Repr-Digest": f"sha-256=:{digest}:",
        "Accept-Ranges": "bytes",
        "Cache-Control": "private, no-cache",
        "Content-Disposition": f'attachment; filename="{_UNSAFE_CHARACTERS.sub("_", os.path.basename(file.path))}"',
    }
    if etag in {tag.strip() for tag in request.headers.get("If-None-Match", "").split(",")}:
        os.close(file.descriptor)
        return Response(status_code=304, headers=headers)
    whole = _Span(0, file.size_bytes - 1)
    wanted = request.headers.get("Range", "")
    if request.headers.get("If-Range", etag) != etag:
        wanted = ""
    span = _span(wanted, file.size_bytes)
    if span is None:
        return FileStream(file, whole, headers, 200)
    if span.first > span.last:
        os.close(file.descriptor)
        return Response(status_code=416, headers={**headers, "Content-Range": f"bytes */{file.size_bytes}"})
    headers["Content-Range"] = f"bytes {span.first}-{span.last}/{file.size_bytes}"
    return FileStream(file, span, headers, 206)


def _span(text: str, size_bytes: int) -> _Span | None:
    """Returns the range of a header; None without one, or for one of another form, which is ignored (RFC 9110)."""
    match = _RANGE.fullmatch(text.strip())
    if match is None or not any(match.groups()):
        return None
    first, last = match.groups()
    if not first:
        return _Span(max(0, size_bytes - int(last)), size_bytes - 1)
    if last and int(last) < int(first):
        return None
    return _Span(int(first), min(int(last), size_bytes - 1) if last else size_bytes - 1)


class FileStream(Response):
    """A response with a range of an open file; it ends with its client, and always closes the file."""

    media_type = BINARY
    """Media type of the answer."""

    def __init__(self, file: OpenedFile, span: _Span, headers: dict[str, str], status_code: int = 200) -> None:
        super().__init__(status_code=status_code, headers=headers)
        self.headers["content-length"] = str(span.last - span.first + 1)
        self._file = file
        self._span = span

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the bytes until their end, or until the client has gone."""
        try:
            async with asyncio.TaskGroup() as tasks:
                sending = tasks.create_task(self._send(send))
                leaving = tasks.create_task(client_gone(receive))
                await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
                sending.cancel()
                leaving.cancel()
        finally:
            os.close(self._file.descriptor)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        offset = self._span.first
        while offset <= self._span.last:
            size_bytes = min(limits.MIB, self._span.last + 1 - offset)
            block = await asyncio.to_thread(os.pread, self._file.descriptor, size_bytes, offset)
            if not block:  # cut meanwhile: the client sees fewer bytes than announced
                break
            offset += len(block)
            await send({"type": "http.response.body", "body": block, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

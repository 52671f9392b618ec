"""`Recorder`: writes down what is asked of a server of the Tinker protocol, and what it answers."""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

PROTOBUF = "application/x-protobuf"
PLAIN_NAME = "org/tiny"
"""The served model in a kept recording, in the place of its folder."""


class Recorder:
    """An ASGI application around another one: each exchange is a line of JSON in a file.

    No header is written but the types of the bodies, so that no key and no address is in the file.
    """

    def __init__(self, app: App, file: Path) -> None:
        """The file is extended if it is there."""
        self._app = app
        self._file = file

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Hands the request on, and the answer back, as they are."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        asked = bytearray()
        more = True
        while more:
            part = await receive()
            asked += part.get("body", b"")
            more = part.get("more_body", False)
        answer = bytearray()
        status = 0
        answer_type = ""
        whole: Message | None = {"type": "http.request", "body": bytes(asked), "more_body": False}

        async def given() -> Message:
            nonlocal whole
            message = whole
            whole = None
            return await receive() if message is None else message

        async def taken(message: Message) -> None:
            nonlocal status, answer_type
            if message["type"] == "http.response.start":
                status = message["status"]
                answer_type = _header(message["headers"], b"content-type")
            answer.extend(message.get("body", b""))
            await send(message)

        await self._app(scope, given, taken)
        if _header(scope["headers"], b"content-encoding") == "zstd":
            import zstandard  # the server's environment has it

            asked = bytearray(zstandard.ZstdDecompressor().decompress(bytes(asked), max_output_size=1 << 24))
        exchange = {
            "verb": scope["method"],
            "path": scope["path"],
            "asked": body_of(_header(scope["headers"], b"content-type"), bytes(asked)),
            "status": status,
            "answered": body_of(answer_type, bytes(answer)),
        }
        with self._file.open("a") as lines:
            lines.write(json.dumps(exchange) + "\n")


def body_of(content_type: str, body: bytes) -> dict[str, Any] | None:
    """A body as it is written down: JSON as it is, protobuf in base64; None if there is none."""
    if not body:
        return None
    if content_type.startswith(PROTOBUF):
        return {"protobuf": base64.b64encode(body).decode()}
    return {"json": json.loads(body)}


def _header(headers: Any, name: bytes) -> str:
    return next((value.decode() for key, value in headers if key.lower() == name), "").partition(";")[0].strip()


def compact(recorded: Path, kept: Path, model: str) -> None:
    """Writes what is worth keeping of a recording: each repetition once, and the served folder by a plain name."""
    seen = set[str]()
    lines = []
    for line in recorded.read_text().splitlines():
        exchange = json.loads(line)
        # The client looks whether the server is there, says that it lives itself, and asks again for what takes long.
        if exchange["path"].endswith(("/healthz", "/session_heartbeat")) or exchange["status"] == 408:
            if line in seen:
                continue
            seen.add(line)
        lines.append(line.replace(json.dumps(model), json.dumps(PLAIN_NAME)) + "\n")
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text("".join(lines))

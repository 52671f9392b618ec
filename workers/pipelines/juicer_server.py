"""Data-Juicer as a service over HTTP and Arrow: run by a Python that has the package, and importing nothing of rftd.

`python juicer_server.py PORT`: listens on 127.0.0.1 (0: any free port), prints `ready PORT`, and ends with its standard
input. Data-Juicer installs missing packages by itself; here it finds no index: install
all that its operators import.
"""

from __future__ import annotations

import io
import json
import os
import sys
import threading
from email.parser import BytesParser
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import version
from itertools import count
from typing import Any, Final

_BODY_BYTES: Final = 1 << 30
"""Maximum size of a request."""
_NUMBERS: Final = count()
"""Numbers of sessions, increasing."""


class JuicerSession:
    """The operators of one session, loaded once."""

    def __init__(self, config: dict[str, Any]) -> None:
        from data_juicer.ops import load_ops

        processes = int(config.get("np") or 1)
        # Data-Juicer counts processes by the machine's memory, and starts that many for one row.
        self.operators = load_ops(
            [
                {name: {"num_proc": processes, **(arguments or {})}}
                for operator in config["operators"]
                for name, arguments in operator.items()
            ]
        )

    def process(self, body: bytes) -> bytes:
        """Returns the Arrow stream of the processed rows."""
        import pyarrow as pa
        from data_juicer.core.data import NestedDataset
        from datasets import Dataset

        with pa.ipc.open_stream(body) as reader:
            rows = NestedDataset(Dataset(reader.read_all()))
        processed = rows.process(self.operators, open_monitor=False)
        table = processed.data.table.combine_chunks()
        if processed._indices is not None:
            table = processed.flatten_indices().data.table.combine_chunks()
        stream = io.BytesIO()
        with pa.ipc.new_stream(stream, table.schema) as writer:
            writer.write_table(table)
        return stream.getvalue()


SESSIONS: Final[dict[str, JuicerSession]] = {}
"""Open sessions by id."""


class JuicerHandler(BaseHTTPRequestHandler):
    """The calls of the protocol."""

    def do_GET(self) -> None:
        """Answers `/health`."""
        if self.path == "/health":
            self.answer(200, {"status": "healthy", "release": version("py-data-juicer")})
        else:
            self.answer(404, {"error": "no such path"})

    def do_POST(self) -> None:
        """Answers `/create`, `/process_experience` and `/close`."""
        size = int(self.headers.get("Content-Length") or 0)
        if size > _BODY_BYTES:
            self.answer(413, {"error": "the body is too large"})
            return
        body = self.rfile.read(size)
        try:
            if self.path == "/create":
                session = f"{os.getpid()}-{next(_NUMBERS)}"
                SESSIONS[session] = JuicerSession(json.loads(body))
                self.answer(200, {"session_id": session})
            elif self.path == "/close":
                SESSIONS.pop(json.loads(body).get("session_id"), None)
                self.answer(200, {})
            elif self.path == "/process_experience":
                self.process(body)
            else:
                self.answer(404, {"error": "no such path"})
        except Exception as error:
            self.answer(400 if self.path == "/create" else 500, {"error": f"{type(error).__name__}: {error}"})

    def process(self, body: bytes) -> None:
        """Answers with the processed rows of a multipart request."""
        head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
        message: Any = BytesParser().parsebytes(head + body)
        fields: dict[str, bytes] = {
            field.get_param("name", header="content-disposition"): field.get_payload(decode=True)
            for field in message.get_payload()
        }
        session = SESSIONS.get(fields["session_id"].decode().strip())
        if session is None:
            self.answer(404, {"error": "no such session"})
            return
        self.answer(200, None, session.process(fields["arrow_data"]))

    def answer(self, status: int, problem: dict[str, Any] | None, body: bytes | None = None) -> None:
        """Writes an answer: a problem or a record as JSON, or bytes."""
        content = json.dumps(problem).encode() if body is None else body
        self.send_response(status)
        self.send_header("Content-Type", "application/json" if body is None else "application/octet-stream")
        self.send_header("Content-Length", str(len(content)))
        if body is not None:
            self.send_header("X-Metrics", "{}")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Writes no line for each request."""


def _end_with_input() -> None:
    while os.read(0, 1):
        pass
    os._exit(0)


def main() -> None:
    """Serves until standard input ends."""
    os.environ.update(PIP_NO_INDEX="1", UV_OFFLINE="1", HF_HUB_OFFLINE="1")
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    version("py-data-juicer")  # an error here, and not in the first answer
    server = HTTPServer(("127.0.0.1", int(sys.argv[1])), JuicerHandler)
    print("ready", server.server_port, file=output, flush=True)
    threading.Thread(target=_end_with_input, daemon=True).start()
    # One thread for all requests: operators fork, and a fork of several threads may never end.
    server.serve_forever()


if __name__ == "__main__":
    main()

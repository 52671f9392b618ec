"""The built-in server of environments: `python server.py KIND NAME [KEY=VALUE ...]`, without any package of rftd.

Imports the package once, and forks a process for each connection: the state of a rollout ends with its connection, and
an action without end stops one process alone. `contract.py` has the calls.
"""

from __future__ import annotations

import http.server
import importlib
import json
import os
import random
import signal
import socketserver
import sys
from typing import Any

SOCKET_VARIABLE = "RFTD_ENVIRONMENT_SOCKET"
"""Variable with the path of the environment's socket."""
STEP_VARIABLE = "RFTD_ENVIRONMENT_STEP_S"
"""Variable with the seconds allowed for one step."""


class EnvironmentCalls(http.server.BaseHTTPRequestHandler):
    """The calls of one connection, in a process of their own."""

    protocol_version = "HTTP/1.1"
    tasks: Any = None
    """The tasks of the environment, set before the first connection."""
    step_s = 60.0
    episode: Any = None
    row: dict[str, Any]

    def do_POST(self) -> None:
        """Answers one call; a call out of time ends the process by a signal."""
        signal.setitimer(signal.ITIMER_REAL, self.step_s + 1.0)
        status = 200
        try:
            request = json.loads(self.rfile.read(int(self.headers.get("Content-Length", "0"))))
            # Not a number is no reward: an error here names the reason.
            body = json.dumps(self._answer(self.path.strip("/"), request), allow_nan=False).encode()
        except Exception as error:
            status = 500
            body = json.dumps({"error": f"{type(error).__name__}: {error}"}).encode()
        signal.setitimer(signal.ITIMER_REAL, 0)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def finish(self) -> None:
        """Closes the episode of a connection that ended."""
        self._close()
        super().finish()

    def log_message(self, format: str, *args: Any) -> None:
        """Writes nothing for each call."""

    def _answer(self, call: str, request: dict[str, Any]) -> dict[str, Any]:
        if call == "tasks":
            indices = range(request["first"], request["first"] + request["count"])
            rows = [self._row(index) for index in indices]
            return {"rows": [row for row in rows if row is not None]}
        if call == "reset":
            return {"observation": self._reset(request["row"], request["seed"])}
        if call == "close":
            self._close()
            return {}
        if self.episode is None:
            raise RuntimeError("no episode: call /reset first")
        if call == "step":
            observation, done = self.episode.step(request["action"])
            return {"observation": observation, "done": bool(done)}
        if call == "score":
            reward, parts = self.episode.score()
            return {"reward": float(reward), "parts": {str(name): float(part) for name, part in parts.items()}}
        raise LookupError(f"no call /{call}")

    def _row(self, index: int) -> dict[str, Any] | None:
        row = self.tasks.row(index)
        # As in the file read by the experiment: without tuples.
        return None if row is None else json.loads(json.dumps({"task": index, **row}, allow_nan=False))

    def _reset(self, row: dict[str, Any], seed: int) -> str:
        self._close()
        index = row["task"]
        if self._row(index) != row:
            raise ValueError(f"task {index} differs from the experiment's row: the environment changed its dataset")
        random.seed(seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(seed)
        self.episode = self.tasks.episode(index, seed)
        prompt = row["prompt"]
        return str(prompt if isinstance(prompt, str) else prompt[-1]["content"])

    def _close(self) -> None:
        episode = self.episode
        self.episode = None
        if episode is not None:
            episode.close()


class ForkingServer(socketserver.ForkingMixIn, socketserver.UnixStreamServer):
    """A process for each connection to a Unix socket."""

    max_children = 4096
    request_queue_size = 256
    block_on_close = False


def main(words: list[str]) -> None:
    """Opens the environment, and answers until the end of the process."""
    kind, name, *pairs = words
    arguments = {key: parsed(text) for key, _, text in (pair.partition("=") for pair in pairs)}
    EnvironmentCalls.tasks = importlib.import_module(f"{kind}_tasks").open_tasks(name, arguments)
    EnvironmentCalls.step_s = float(os.environ.get(STEP_VARIABLE, "60"))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    with ForkingServer(os.environ[SOCKET_VARIABLE], EnvironmentCalls) as server:
        server.serve_forever()


def parsed(text: str) -> Any:
    """Returns an argument: JSON where the text is JSON, else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


if __name__ == "__main__":
    main(sys.argv[1:])

"""A small environment with the contract of `workers/workflows/environments`, as a command: the standard library alone.

`python contract_environment.py MODE`: the sums of `sums`, or one of the faults of the modes after it.
"""

from __future__ import annotations

import http.server
import json
import os
import random
import socketserver
import sys
import time
from typing import Any


class SumCalls(http.server.BaseHTTPRequestHandler):
    """Guessing a sum: a wrong answer is told, the third one ends the episode."""

    protocol_version = "HTTP/1.1"
    mode = "sums"
    episodes: dict[str, dict[str, Any]] = {}

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status = 200
        try:
            body = json.dumps(getattr(self, self.path.strip("/"))(**request)).encode()
        except Exception as error:
            status = 500
            body = json.dumps({"error": str(error)}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def tasks(self, first: int, count: int) -> dict[str, Any]:
        rows = [{"prompt": f"{number}+{number}?", "response": str(2 * number)} for number in range(40)]
        return {"rows": rows[first : first + count]}

    def reset(self, session: str, row: dict[str, Any], seed: int) -> dict[str, Any]:
        if self.mode == "changes":
            return {"observation": "another question"}
        prompt = row.get("prompt") or row["question"]
        answer = row.get("response") or str(row["answer"]).rpartition(" ")[2]
        self.episodes[session] = {"answer": answer, "said": [], "luck": random.Random(seed).randrange(1000)}
        return {"observation": prompt}

    def step(self, session: str, action: str) -> dict[str, Any]:
        if self.mode == "hangs":
            time.sleep(600)
        if self.mode == "dies":
            os._exit(7)
        if self.mode == "floods":
            return {"observation": "x" * (5 << 20), "done": False}
        episode = self.episodes[session]
        episode["said"].append(action)
        right = episode["answer"] in action
        done = right or (self.mode == "sums" and len(episode["said"]) == 3)
        return {"observation": f"No, try again ({episode['luck']}).", "done": done and self.mode != "endless"}

    def score(self, session: str) -> dict[str, Any]:
        if self.mode in ("nan", "inf", "text"):
            return {"reward": {"nan": float("nan"), "inf": 1e31, "text": "much"}[self.mode], "parts": {}}
        episode = self.episodes[session]
        right = float(episode["answer"] in episode["said"][-1])
        return {"reward": right, "parts": {"accuracy": right}}

    def close(self, session: str) -> dict[str, Any]:
        self.episodes.pop(session, None)
        return {}

    def log_message(self, format: str, *args: Any) -> None:
        """Writes nothing."""


class ThreadedSums(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 64


if __name__ == "__main__":
    SumCalls.mode = sys.argv[1]
    if SumCalls.mode == "mute":
        time.sleep(600)
    if SumCalls.mode == "broken":
        sys.exit("no licence found")
    ThreadedSums(os.environ["RFTD_ENVIRONMENT_SOCKET"], SumCalls).serve_forever()

"""A client of an experiment that serves: it asks, says what an answer was worth, and insists on being told so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from synthetic.until import poll

from rftd.ops.bound_socket import bind

FAKES = (
    "model.model_path=fake",
    "model.max_model_len=256",
    "model.max_response_tokens=32",
    "explorer.proxy_port=0",
    "explorer.runner_per_model=4",
    "explorer.rollout_model.engine_type=fake",
    "trainer.trainer_type=fake",
    "trainer.save_interval=1",
)
"""Overrides for an experiment that serves without a model."""


def free_port() -> int:
    """A port that nobody listens on, for servers that share one."""
    with bind("127.0.0.1", 0) as bound:
        return int(bound.getsockname()[1])


class ServedChat:
    """One client of the experiment in a folder."""

    def __init__(self, folder: Path, tend: Callable[[], object]) -> None:
        """`tend` starts the daemon anew where it was killed."""
        self._at = folder / "serving" / "url"
        self._tend = tend

    @property
    def base_url(self) -> str:
        """The address of the server; OSError before there was one."""
        return self._at.read_text().strip()

    def until_up(self) -> None:
        """Waits until there are weights to answer with."""
        self.insist("GET", "/health")

    def until_version(self, version: int) -> None:
        """Waits until these weights, or newer ones, answer."""
        poll(lambda: int(self.insist("GET", "/health")["version"]) >= version, timeout_s=120.0)

    def send(self, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        """The reply. Raises httpx.HTTPError or OSError if nobody is there."""
        return httpx.request(method, self.base_url + path, json=body, headers=headers, timeout=60.0, trust_env=False)

    def insist(self, method: str, path: str, body: Any = None) -> Any:
        """What a reply of status 200 says, however often it takes: whoever answers may be killed meanwhile."""
        told: list[Any] = []

        def answered() -> bool:
            self._tend()
            try:
                reply = self.send(method, path, body)
            except (httpx.HTTPError, OSError) as error:
                told[:] = [error]
                return False
            told[:] = [reply.json()]
            return reply.status_code == 200

        poll(answered, timeout_s=120.0, told=lambda: told)
        return told[0]

    def ask(self, text: str) -> str:
        """The id of an answer."""
        body = {"model": "any", "messages": [{"role": "user", "content": text}]}
        return str(self.insist("POST", "/v1/chat/completions", body)["id"])

    def judge(self, id: str, reward: float, **names: Any) -> bool:
        """Says what an answer was worth; False if that was known."""
        feedback = {"reward": reward, "msg_ids": [id], **names}
        return bool(self.insist("POST", "/feedback", feedback)["recorded"])

"""Clients of OpenAI's API for a class: those of the package `openai`, or these small ones where it is not installed."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

TIMEOUT_S: Final = 3600.0
"""Default time-out of a request, in seconds."""


class JsonView(dict[str, Any]):
    """A JSON object with its fields as attributes; a missing field is None."""

    def __getattr__(self, name: str) -> Any:
        """Returns the field; None if missing. Raises AttributeError for special methods, as copying requires."""
        if name.startswith("__"):
            raise AttributeError(name)
        return self.get(name)

    def model_dump(self) -> dict[str, Any]:
        """Returns the object as a dictionary."""
        return dict(self)


def _viewed(node: Any) -> Any:
    """Returns decoded JSON with every object replaced by a `JsonView`, also within lists and objects."""
    if isinstance(node, dict):
        return JsonView({name: _viewed(inner) for name, inner in node.items()})
    return [_viewed(inner) for inner in node] if isinstance(node, list) else node


class APIStatusError(Exception):
    """An answer other than success, with its body."""


class _Client:
    """Base of both clients: address, key and time-out, and the requests built from a path and a body."""

    def __init__(self, *, base_url: str, api_key: str, timeout: float = TIMEOUT_S, **_: Any) -> None:
        self.base_url = base_url
        self.api_key = api_key
        self.timeout = timeout
        self.chat = _Chat(self)
        self.models = _Models(self)

    def request(self, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        """Returns the arguments of a request; a body is posted, and `extra_body` is part of the body."""
        fields = dict(body or {})
        extra = fields.pop("extra_body", None) or {}
        fields.pop("timeout", None)
        if fields.get("stream"):
            raise ValueError("streams need the package openai: pip install openai")
        return {
            "method": "GET" if body is None else "POST",
            "url": f"{str(self.base_url).rstrip('/')}{path}",
            "json": None if body is None else {**fields, **extra},
            "headers": {"Authorization": f"Bearer {self.api_key}"},
        }


class OpenAI(_Client):
    """A blocking client of chats and of the list of models."""

    def send(self, path: str, body: dict[str, Any] | None) -> Any:
        """Returns the answer to a request. Raises APIStatusError."""
        import httpx

        with httpx.Client(trust_env=False, timeout=self.timeout) as client:
            return _answer(client.request(**self.request(path, body)))

    def close(self) -> None:
        """Does nothing: no connection outlives its request."""


class AsyncOpenAI(_Client):
    """A client as `OpenAI`, with coroutines."""

    async def send(self, path: str, body: dict[str, Any] | None) -> Any:
        """Returns the answer to a request. Raises APIStatusError."""
        import httpx

        async with httpx.AsyncClient(trust_env=False, timeout=self.timeout) as client:
            return _answer(await client.request(**self.request(path, body)))

    async def close(self) -> None:
        """Does nothing: no connection outlives its request."""


class _Completions:
    """The client's attribute `chat.completions`, as in the package `openai`."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def create(self, **body: Any) -> Any:
        """Returns a chat's answer, or a coroutine with the answer."""
        return self._client.send("/chat/completions", body)


class _Chat:
    """The client's attribute `chat`, as in the package `openai`."""

    def __init__(self, client: Any) -> None:
        self.completions = _Completions(client)


class _Models:
    """The client's attribute `models`, as in the package `openai`."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def list(self) -> Any:
        """Returns the models, or a coroutine with the models."""
        return self._client.send("/models", None)


def _answer(response: Any) -> Any:
    """Returns the decoded body of a successful response. Raises APIStatusError for any other status."""
    if response.is_success:
        return _viewed(response.json())
    raise APIStatusError(f"{response.status_code}: {response.text[:300]}")


def open_client(base_url: str, api_key: str, model_path: str, *, blocking: bool = True) -> Any:
    """Returns a client of the API at `base_url`, blocking or asynchronous, with `model_path` as an attribute."""
    if find_spec("openai") is None:
        client: Any = (OpenAI if blocking else AsyncOpenAI)(base_url=base_url, api_key=api_key)
    else:
        package: Any = import_module("openai")
        client = (package.OpenAI if blocking else package.AsyncOpenAI)(base_url=base_url, api_key=api_key)
    client.model_path = model_path
    return client

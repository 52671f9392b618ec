"""The arguments of a service, known without the HTTP client that asks it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec


class ServiceArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments below `extra_engine_args` of a model with `engine_type: external`."""

    timeout_s: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 120.0
    """The longest wait for one answer."""
    retries: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 8
    """Retries of one rollout, of all its questions together."""
    wait_s: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 300.0
    """The pauses before them, together."""
    length_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """What the service calls the longest answer."""
    body: dict[str, Any] = {}
    """More fields of each request, as the service knows them."""

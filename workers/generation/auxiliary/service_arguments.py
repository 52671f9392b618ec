"""The arguments of a service, importable without the HTTP client."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec


class ServiceArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`extra_engine_args` of a model with `engine_type: external`."""

    timeout_s: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 120.0
    """Longest wait for one answer, in seconds."""
    retries: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 8
    """Maximum retries of one rollout, over all its requests."""
    wait_s: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 300.0
    """Maximum total of the pauses before retries, in seconds."""
    length_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """Name of the request field for the longest answer."""
    body: dict[str, Any] = {}
    """Additional fields of each request, as the service defines them."""

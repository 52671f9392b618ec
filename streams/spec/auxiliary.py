"""The part of a specification describing a model beside the trained one."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from rftd.streams.log.bounds import Finite, Index, Integer
from rftd.streams.log.stored_path import InputPath
from rftd.streams.spec.engine_needs import EngineNeeds

# Defaults give the meaning of logs written before the field existed, as in `rftd.streams.spec.spec`.

SERVICE: Final = "external"
"""`AuxiliarySpec.engine` of a model served over OpenAI's API."""


class AuxiliarySpec(msgspec.Struct, frozen=True, kw_only=True):
    """A model available to workflows and rewards: run by an engine of its own, or served elsewhere."""

    name: str
    """The name used by records and errors."""
    engine: str = "torch"
    """A rollout engine, opened by each explorer; or `external`."""
    path: InputPath = ""
    """The model's folder, for an engine."""
    max_model_len: Index = 0
    max_prompt_tokens: Index = 0
    max_response_tokens: Index = 0
    """Maximum length of an answer, also of a service's."""
    chat_template: str | None = None
    enable_thinking: bool | None = None
    """A variable of the chat template; None: not passed."""
    trust_remote_code: bool = False
    temperature: Finite = 1.0
    """Default of requests without a value; `top_p` and `top_k` likewise."""
    top_p: Finite = 1.0
    top_k: Integer = -1
    dtype: str = "float32"
    threads: Index = 1
    engines: Index = 1
    """Engines of one explorer; a rollout asks the least busy one."""
    concurrency: Index = 16
    """Maximum number of concurrent requests to one engine; more wait."""
    engine_args: dict[str, Any] = {}
    """The engine's own, or those of `workers.rollout.auxiliary.service_arguments`."""
    needs: EngineNeeds = EngineNeeds()
    model_name: str = ""
    """The service's name of the model."""
    base_url: str = ""
    """The service's address, up to `/v1`; empty if a variable holds it."""
    base_url_env: str = ""
    """The environment variable with the address."""
    api_key_env: str = ""
    """The environment variable with the key; empty: the service requires none."""

    @property
    def served(self) -> bool:
        """True if a service answers, without an engine here."""
        return self.engine == SERVICE

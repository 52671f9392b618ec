"""The part of a specification that describes a model beside the one that is trained."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from rftd.streams.log.bounds import Finite, Index, Integer
from rftd.streams.log.stored_path import InputPath
from rftd.streams.spec.engine_needs import EngineNeeds

# Defaults say what logs mean that were written before the field was there, as in `rftd.streams.spec.spec`.

SERVICE: Final = "external"
"""`AuxiliarySpec.engine` of a model that somebody serves over OpenAI's API."""


class AuxiliarySpec(msgspec.Struct, frozen=True, kw_only=True):
    """A model that workflows and rewards may ask: with an engine of its own, or served by somebody."""

    name: str
    """What records and errors call it."""
    engine: str = "torch"
    """A rollout engine, opened by each explorer; or `external`."""
    path: InputPath = ""
    """The folder of a model with an engine."""
    max_model_len: Index = 0
    max_prompt_tokens: Index = 0
    max_response_tokens: Index = 0
    """The longest answer, of a service too."""
    chat_template: str | None = None
    enable_thinking: bool | None = None
    """A variable of the chat template; None: it is not given."""
    trust_remote_code: bool = False
    temperature: Finite = 1.0
    """How it is asked where the caller does not say; `top_p` and `top_k` likewise."""
    top_p: Finite = 1.0
    top_k: Integer = -1
    dtype: str = "float32"
    threads: Index = 1
    engines: Index = 1
    """Engines of one explorer; a rollout asks the least busy one."""
    concurrency: Index = 16
    """Questions to one engine at a time; more wait."""
    engine_args: dict[str, Any] = {}
    """The engine's own, or those of `workers.rollout.auxiliary.service_arguments`."""
    needs: EngineNeeds = EngineNeeds()
    model_name: str = ""
    """What the service calls the model."""
    base_url: str = ""
    """The service's address, up to `/v1`; empty where a variable holds it."""
    base_url_env: str = ""
    """The name of the environment variable that holds the address."""
    api_key_env: str = ""
    """The name of the environment variable that holds the key; empty: the service wants none."""

    @property
    def served(self) -> bool:
        """True if a service answers, and nothing is opened here."""
        return self.engine == SERVICE

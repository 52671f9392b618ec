"""The engine `external`: a model behind a service with OpenAI's API. It can be evaluated, but not trained.

A service answers in text, without log-probabilities. Tokens serve only for counting: those of the tokenizer in the
model's folder if the experiment names one, else the bytes of the text.
"""

from __future__ import annotations

import asyncio
import os
from random import SystemRandom
from typing import Final

import httpx

from rftd.ops.clock import Clock
from rftd.ops.errors import ConfigError, RolloutError
from rftd.streams.events.experience import Span
from rftd.streams.spec.engines import OWNERS, SERVICE, AuxiliarySpec, ReachSpec
from rftd.workers.datasets.stage_tokenizer import external_tokenizer
from rftd.workers.datasets.tokenizer import Tokenizer
from rftd.workers.generation.auxiliary.auxiliary_model import ModelAddress
from rftd.workers.generation.auxiliary.service import (
    ModelService,
    ServiceKeyError,
    ServiceModel,
    service_address,
)
from rftd.workers.generation.auxiliary.service_arguments import ServiceArgs
from rftd.workers.generation.engine import EngineStats, Generation, GenerationRequest, RolloutEngine
from rftd.workers.generation.engine_definition import EngineOpening, RolloutEngineDefinition
from rftd.workers.weights.channel import WeightsRef

_FIELD: Final = "model.external_model"
"""Field of the experiment file named by errors."""


class ExternalArgs(ServiceArgs, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of the engine: the model's address, from `model.external_model`, and the service's settings."""

    model_name: str = ""
    """Name of the model at the service."""
    base_url_env: str = ""
    """Environment variable with the service's address, up to `/v1`."""
    api_key_env: str = ""
    """Environment variable with the key; empty: no key required."""


class ExternalEngine:
    """Implements `RolloutEngine` by calls of a service, for conversations only."""

    def __init__(
        self,
        arguments: ExternalArgs,
        address: ModelAddress,
        tokenizer: Tokenizer,
        *,
        slots: int,
        clock: Clock,
        reach: ReachSpec = OWNERS,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Makes an engine with at most `slots` requests at a time. `reach` limits the addresses that the experiment may
        use; tests replace the network by `transport`.
        """
        spec = _spec(arguments, slots)
        self._service = ModelService(
            spec, arguments, address, clock=clock, subject=_subject(arguments), reach=reach, transport=transport
        )
        self._tokenizer = tokenizer
        self._random = SystemRandom()
        self._version = (-1, -1)
        self._refused: ConfigError | None = None
        self._tokens = 0
        self._requests = 0
        self._running = 0

    @property
    def version(self) -> tuple[int, int]:
        """The version announced last; the service's model itself is unaffected by announcements."""
        return self._version

    async def generate(self, request: GenerationRequest) -> Generation:
        """Returns the service's answer to the request's conversation, with retries within the budget.

        Raises RolloutError without a conversation, if the service refuses, or if it was busy for too long.
        """
        if not request.messages:
            raise RolloutError(
                "a model behind a service accepts conversations only, and this prompt is not one",
                fix="use a workflow that calls model.chat, without a reply prefix",
            )
        self._running += 1
        try:
            retries = self._service.retries(self._random)
            answer = await self._service.chat(request.messages, request.sampling, retries)
        except ServiceKeyError as error:
            self._refused = ConfigError(error.what, field=f"{_FIELD}.api_key_env", fix=error.fix)
            raise
        finally:
            self._running -= 1
        # An answer has at least one token: an empty answer its end.
        tokens = tuple(self._tokenizer.encode(answer.text) or self._tokenizer.eos_ids[:1] or (0,))
        self._requests += 1
        self._tokens += len(tokens)
        return Generation(
            tokens=tokens,
            # Unknown to the service. Evaluated answers are never trained, so nothing reads these numbers.
            logprobs=(0.0,) * len(tokens),
            processed_logprobs=(0.0,) * len(tokens) if request.sampling.processed_logprobs else (),
            spans=(Span(*self._version, 0, len(tokens)),),
            finish="length" if answer.finish == "length" else "stop",
            text=answer.text,
        )

    async def load_weights(self, weights: WeightsRef) -> str:
        """Uses the announced version for later answers, without loading anything. Raises ConfigError once the service
        has refused the key.
        """
        if self._refused is not None:
            raise self._refused
        self._version = (weights.version, weights.generation)
        return weights.checksum

    def stats(self) -> EngineStats:
        """Returns the counters of this engine's requests; nothing ever waits."""
        return EngineStats(tokens_total=self._tokens, requests_total=self._requests, running=self._running, waiting=0)

    async def close(self) -> None:
        """Closes the connections to the service."""
        await self._service.close()


def _spec(arguments: ExternalArgs, slots: int) -> AuxiliarySpec:
    """Returns the specification of the external model as an auxiliary model behind a service."""
    return AuxiliarySpec(
        name=arguments.model_name,
        engine=SERVICE,
        model_name=arguments.model_name,
        base_url_env=arguments.base_url_env,
        api_key_env=arguments.api_key_env,
        concurrency=slots,
    )


def _subject(arguments: ExternalArgs) -> ServiceModel:
    """Returns the model's name and field, for errors."""
    return ServiceModel(f"the external model {arguments.model_name!r}", _FIELD)


async def _open(opening: EngineOpening[ExternalArgs]) -> RolloutEngine:
    """Opens the engine for an explorer. Raises ConfigError for a missing key or a forbidden address."""
    arguments = opening.arguments
    spec = _spec(arguments, opening.slots)
    address = service_address(spec, os.environ, _subject(arguments), reach=opening.reach)
    tokenizer = await asyncio.to_thread(external_tokenizer, opening.model)
    return ExternalEngine(arguments, address, tokenizer, slots=opening.slots, clock=opening.clock, reach=opening.reach)


ENGINE: Final = RolloutEngineDefinition(arguments=ExternalArgs, open=_open)
"""Definition of the engine for the registry."""

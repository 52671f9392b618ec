"""`TinkerRolloutEngine`: responses drawn by the service."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final, NamedTuple

from rftd.ops.decoding import json_decoder
from rftd.ops.errors import RftdError, RolloutError
from rftd.streams.events.experience import Span
from rftd.streams.spec.spec import ModelSpec
from rftd.workers.engines.tinker.answers import drawn_of
from rftd.workers.engines.tinker.rollout.arguments import undrawable
from rftd.workers.engines.tinker.service import Sampler, ServiceSampling, TinkerService
from rftd.workers.engines.tinker.watch import ServiceWatch
from rftd.workers.generation.engine import EngineStats, Generation, GenerationRequest
from rftd.workers.models.model_folder import added_tokens, generation_ends
from rftd.workers.weights.channel import WeightsRef
from rftd.workers.weights.service import SERVICE

_SEEDS: Final = 1 << 31
"""Number of the service's seeds: larger ones are taken modulo."""


class TinkerRolloutEngine:
    """Implements `RolloutEngine` with the service. Every token of a response is drawn by the weights in use when it was
    requested.
    """

    def __init__(self, service: TinkerService, model: ModelSpec, service_name: str = "the Tinker service") -> None:
        """Makes an engine without weights; requests fail until `load_weights`. `service_name` is for messages."""
        self._service = service
        self._watch = ServiceWatch(service.answers, service_name)
        self._model = model
        self._ends = _model_ends(Path(model.path))
        self._sampler: Sampler | None = None
        self._version = (-1, -1)
        self._closed = asyncio.Event()
        self._tokens = self._requests = self._running = 0

    @property
    def version(self) -> tuple[int, int]:
        """Version and generation loaded last; version -1 before the first load."""
        return self._version

    async def generate(self, request: GenerationRequest) -> Generation:
        """Returns the response. Raises RolloutError, also for an answer of an unexpected shape, with the field."""
        self._check(request)
        sampler = self._sampler
        version = self._version
        if sampler is None or self._closed.is_set():
            raise RolloutError("the engine was closed" if self._closed.is_set() else "the engine has no weights")
        self._running += 1
        try:
            with self._watch.call():
                drawn = await self._or_closed(sampler, request)
        finally:
            self._running -= 1
        self._tokens += len(drawn.tokens)
        self._requests += 1
        return Generation(
            tokens=drawn.tokens,
            logprobs=drawn.logprobs,
            spans=(Span(*version, 0, len(drawn.tokens)),),
            finish=drawn.finish,
        )

    async def _or_closed(self, sampler: Sampler, request: GenerationRequest) -> Any:
        """Waits for the drawn response, or for `close`, which raises RolloutError."""
        request_task = asyncio.ensure_future(sampler.sample(request.prompt, self._draw(request)))
        closed_task = asyncio.ensure_future(self._closed.wait())
        try:
            await asyncio.wait({request_task, closed_task}, return_when=asyncio.FIRST_COMPLETED)
            if not request_task.done():
                raise RolloutError("the engine was closed")
            try:
                return drawn_of(request_task.result(), max_tokens=request.sampling.max_tokens)
            except RolloutError:
                raise
            except RftdError as error:
                raise RolloutError(error.what, field=error.field, fix=error.fix) from error
        finally:
            request_task.cancel()
            closed_task.cancel()

    async def load_weights(self, weights: WeightsRef) -> str:
        """Draws later requests from the named weights; running requests finish with the weights they began with."""
        if weights.method != SERVICE:
            raise RolloutError(
                f"weights came through the channel {weights.method!r}, which the service cannot read",
                where=weights.path,
                fix="train with trainer_type: tinker",
            )
        with self._watch.call():
            self._sampler = await asyncio.to_thread(self._service.sampler, weights.path)
        self._version = (weights.version, weights.generation)
        # The weights cannot be digested here: the announced checksum stands for the name.
        return weights.checksum

    def stats(self) -> EngineStats:
        """Returns the counters of this engine's requests, with the name of the service while it does not answer."""
        return EngineStats(
            tokens_total=self._tokens,
            requests_total=self._requests,
            running=self._running,
            waiting=0,
            waits_for=self._watch.waits_for,
        )

    async def close(self) -> None:
        """Ends the session at the service; waiting requests raise RolloutError."""
        self._closed.set()
        self._watch.close()
        await asyncio.to_thread(self._service.close)

    def _check(self, request: GenerationRequest) -> None:
        """Raises RolloutError for settings unsupported by the service, and for a prompt that leaves no room."""
        if wrong := undrawable(request.sampling):
            raise RolloutError(
                f"the Tinker service cannot draw with {', '.join(wrong)}",
                field=f"rollout_args.{wrong[0]}",
                fix="leave it out, or generate with torch or vllm",
            )
        room = self._model.max_model_len - len(request.prompt)
        if not request.prompt or room < 1:
            raise RolloutError(
                f"a prompt of {len(request.prompt)} tokens leaves no room for a response in {self._model.max_model_len}"
            )

    def _draw(self, request: GenerationRequest) -> ServiceSampling:
        """Returns the sampling settings of a request in the service's form."""
        sampling = request.sampling
        return ServiceSampling(
            max_tokens=min(sampling.max_tokens, self._model.max_model_len - len(request.prompt)),
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            seed=sampling.seed % _SEEDS,
            stop=self._stop(sampling.stop),
        )

    def _stop(self, texts: tuple[str, ...]) -> tuple[str, ...] | tuple[int, ...] | None:
        """Returns the stops of a response. Without any the service stops at its own end, with some at those alone."""
        if texts:
            return tuple(dict.fromkeys((*texts, *self._ends.texts)))
        return self._ends.extra or None


class ModelEnds(NamedTuple):
    """The end tokens of responses, read from a model folder."""

    texts: tuple[str, ...]
    """Texts of the end tokens, as far as the tokenizer's files have them."""
    extra: tuple[int, ...]
    """Ids of the end tokens, if generation_config.json adds to the end known to the service; else empty."""


def _model_ends(model: Path) -> ModelEnds:
    """Reads a model's end tokens. Raises DataError for an unreadable generation_config.json."""
    tokenizer_end = _own_end(model)
    named = added_tokens(model)
    numbers = {text: number for number, text in named.items()}
    ends = generation_ends(model)
    texts = (tokenizer_end, *(named.get(end, "") for end in ends))
    all_ends = (*([numbers[tokenizer_end]] if tokenizer_end in numbers else []), *ends)
    extra = tuple(dict.fromkeys(all_ends)) if len(set(all_ends)) > 1 else ()
    return ModelEnds(texts=tuple(dict.fromkeys(filter(None, texts))), extra=extra)


def _own_end(model: Path) -> str:
    """Returns the text of the end of sequence in the tokenizer's settings; empty without one."""
    try:
        settings = json_decoder(dict[str, Any]).decode((model / "tokenizer_config.json").read_bytes())
    except (OSError, ValueError):
        return ""
    end = settings.get("eos_token")
    text = end.get("content") if isinstance(end, dict) else end
    return text if isinstance(text, str) else ""

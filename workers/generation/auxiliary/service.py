"""`ModelService`: a model that somebody serves over OpenAI's API, asked with patience and within bounds."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from random import Random
from typing import Annotated, Any, Final, NamedTuple

import httpx
import msgspec

from rftd.ops import limits
from rftd.ops.clock import Clock
from rftd.ops.decoding import UNREADABLE, json_decoder
from rftd.ops.errors import ConfigError, RolloutError
from rftd.ops.outbound import web_address
from rftd.ops.outbound_transport import PublicTransport
from rftd.ops.redaction import MASK, Secret
from rftd.streams.spec.auxiliary import AuxiliarySpec
from rftd.streams.spec.reach import OWNERS, ReachSpec
from rftd.streams.spec.spec import SamplingSpec
from rftd.workers.datasets.message import Message
from rftd.workers.generation.auxiliary.auxiliary_model import AuxiliaryAnswer, ModelAddress
from rftd.workers.generation.auxiliary.retries import Retries
from rftd.workers.generation.auxiliary.service_arguments import ServiceArgs
from rftd.workers.generation.engine import Sampling

NO_KEY: Final = "EMPTY"
"""The key that is sent where the service wants none: clients of OpenAI's API refuse an empty one."""
_BUSY: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
"""Answers that may be others in a while."""
_KEY_REFUSED: Final = (401, 403)
_SAID_CHARS: Final = 300


class ServiceModel(NamedTuple):
    """A model of a service, as errors speak of it."""

    who: str
    field: str
    """The place in the experiment file that says where it is served."""


def auxiliary(spec: AuxiliarySpec) -> ServiceModel:
    """An auxiliary model of the file."""
    return ServiceModel(f"the auxiliary model {spec.name!r}", "explorer.auxiliary_models")


class ServiceKeyError(RolloutError):
    """A service refuses the key: whatever is asked of it will be refused."""


class _Said(msgspec.Struct, frozen=True):
    content: str


class _Choice(msgspec.Struct, frozen=True):
    message: _Said
    finish_reason: str | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)] = 0
    completion_tokens: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)] = 0


class _Completion(msgspec.Struct, frozen=True):
    choices: Annotated[list[_Choice], msgspec.Meta(min_length=1)]
    usage: _Usage | None = None


class _Busy(NamedTuple):
    """An answer that may be another one in a while."""

    why: str
    after_s: float | None = None


def service_address(
    spec: AuxiliarySpec,
    environ: Mapping[str, str],
    known: ServiceModel | None = None,
    *,
    reach: ReachSpec = OWNERS,
) -> ModelAddress:
    """Base URL and key of the service, from the environment where the file names variables.

    `known` is what errors call the model, by default the auxiliary model of that name; `reach` is the experiment's.

    Raises ConfigError, which names the variable and never shows a value.
    """
    known = known or auxiliary(spec)
    base_url = _variable(known, spec.base_url_env, environ, reach) if spec.base_url_env else spec.base_url
    base_url = base_url.rstrip("/")
    try:
        reach.check(base_url, field=known.field, variable=spec.base_url_env)
        address = web_address(base_url, field=known.field)
    except ConfigError as error:
        if reach.restricted and spec.base_url_env:
            raise _withheld(known, spec.base_url_env) from None
        where = f"the environment variable {spec.base_url_env}" if spec.base_url_env else "base_url"
        raise ConfigError(f"{where} of {known.who} {error.what}", field=known.field, fix=error.fix) from None
    key = NO_KEY
    if spec.api_key_env:
        if not reach.may_send(spec.api_key_env, address):
            raise _withheld(known, spec.api_key_env)
        key = _variable(known, spec.api_key_env, environ, reach)
    return ModelAddress(base_url, Secret(key), spec.model_name)


def _variable(known: ServiceModel, name: str, environ: Mapping[str, str], reach: ReachSpec) -> str:
    value = environ.get(name, "").strip() if reach.may_read(name) else ""
    if value:
        return value
    if reach.restricted:
        raise _withheld(known, name)
    raise ConfigError(
        f"the environment variable {name}, which {known.who} needs, is not set here",
        field=known.field,
        fix=f"export {name} where the explorers run, then start the daemon (or the worker) anew",
    )


def _withheld(known: ServiceModel, name: str) -> ConfigError:
    """The error for a variable that another's experiment does not get: the same whether it is set or not."""
    return ConfigError(
        f"the environment variable {name}, which {known.who} needs, is not given to this experiment for that address",
        field=known.field,
        fix=f"have the owner of the daemon set {name}, and allow it for the service's host",
    )


class ModelService:
    """One model of a service. All of it runs on one event loop; `AuxiliaryModels` brings questions there."""

    def __init__(
        self,
        spec: AuxiliarySpec,
        arguments: ServiceArgs,
        address: ModelAddress,
        *,
        clock: Clock,
        known: ServiceModel | None = None,
        reach: ReachSpec = OWNERS,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`known` is what errors call the model, `reach` is the experiment's; `transport` stands for the network in
        tests."""
        self.address = address
        self._known = known or auxiliary(spec)
        self._spec = spec
        self._arguments = arguments
        self._clock = clock
        self._places = asyncio.Semaphore(max(1, spec.concurrency))
        if transport is None and reach.restricted:
            transport = PublicTransport(reach.hosts(spec.base_url_env), field=self._known.field)
        # A redirect is not followed: the key would travel to wherever it points.
        self._client = httpx.AsyncClient(
            transport=transport,
            timeout=arguments.timeout_s,
            follow_redirects=False,
            limits=httpx.Limits(max_connections=None),
        )

    def retries(self, random: Random) -> Retries:
        """The budget of one rollout."""
        return Retries(self._arguments.retries, self._arguments.wait_s, random)

    async def chat(
        self, messages: Sequence[Message], sampling: SamplingSpec | Sampling | None, retries: Retries
    ) -> AuxiliaryAnswer:
        """The assistant's next message. Raises RolloutError as `AuxiliaryModel.chat` does; no error shows the key.

        ServiceKeyError says that the key is refused.
        """
        body = self._body(messages, sampling)
        failures = 0
        while True:
            async with self._places:
                outcome = await self._asked(body)
            if isinstance(outcome, AuxiliaryAnswer):
                return outcome
            failures += 1
            pause_s = retries.pause(failures, outcome.after_s)
            if pause_s is None:
                asked = f", and asks for {outcome.after_s:g} s more" if outcome.after_s is not None else ""
                raise self._error(
                    f"{outcome.why}{asked}; this rollout has retried {retries.used} times and waited "
                    f"{retries.waited_s:.0f} s, of {retries.most} times and {retries.wait_s:g} s",
                    fix="lower explorer.runner_per_model, or raise retries and wait_s in its extra_engine_args",
                )
            await self._clock.sleep(pause_s)

    async def close(self) -> None:
        """Closes the connections. Idempotent."""
        await self._client.aclose()

    def _body(self, messages: Sequence[Message], sampling: SamplingSpec | Sampling | None) -> bytes:
        spec = self._spec
        asked = sampling or SamplingSpec(
            temperature=spec.temperature, top_p=spec.top_p, top_k=spec.top_k, max_tokens=spec.max_response_tokens
        )
        body: dict[str, Any] = {
            "model": spec.model_name,
            "messages": [message.as_dict() for message in messages],
            "temperature": asked.temperature,
        }
        if length := min(filter(None, (asked.max_tokens, spec.max_response_tokens)), default=0):
            body[self._arguments.length_field] = length
        # Only what differs from a service's defaults: many refuse fields that they do not know.
        if asked.top_p != 1:
            body["top_p"] = asked.top_p
        if asked.top_k > 0:
            body["top_k"] = asked.top_k
        if asked.presence_penalty:
            body["presence_penalty"] = asked.presence_penalty
        if asked.stop:
            body["stop"] = list(asked.stop)
        return msgspec.json.encode(body | self._arguments.body)

    async def _asked(self, body: bytes) -> AuxiliaryAnswer | _Busy:
        """One try."""
        url = f"{self.address.base_url}/chat/completions"
        headers = {"Authorization": f"Bearer {self.address.api_key}", "Content-Type": "application/json"}
        try:
            async with (
                asyncio.timeout(self._arguments.timeout_s),
                self._client.stream("POST", url, content=body, headers=headers) as response,
            ):
                return self._read(response, await self._content(response))
        except TimeoutError:
            return _Busy(f"gave no answer within {self._arguments.timeout_s:g} s")
        except httpx.TransportError as error:
            return _Busy(f"cannot be reached: {type(error).__name__}: {self._shown(str(error))}")
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            raise self._error(f"cannot be asked: {type(error).__name__}: {self._shown(str(error))}") from None

    async def _content(self, response: httpx.Response) -> bytes:
        parts: list[bytes] = []
        size = 0
        async for part in response.aiter_bytes():
            parts.append(part)
            size += len(part)
            if size > limits.SERVICE_ANSWER_SIZE_BYTES:
                raise self._error(f"answered with more than {limits.SERVICE_ANSWER_SIZE_BYTES} bytes")
        return b"".join(parts)

    def _read(self, response: httpx.Response, content: bytes) -> AuxiliaryAnswer | _Busy:
        status = response.status_code
        if status in _KEY_REFUSED:
            # Without the service's own words, for some repeat the key in them.
            variable = self._spec.api_key_env
            what = f"the key in the environment variable {variable}" if variable else "a call without a key"
            fix = f"export another {variable} where the explorers run" if variable else "name a variable that holds one"
            raise ServiceKeyError(self._named(f"answered {status}: it refuses {what}"), fix=fix)
        if status in _BUSY:
            return _Busy(f"answered {status}{self._words(content)}", self._after_s(response.headers))
        if status != httpx.codes.OK:
            raise self._error(f"answered {status}{self._words(content)}")
        try:
            given = json_decoder(_Completion).decode(content)
        except UNREADABLE as error:
            raise self._error(f"gave an answer of another shape: {self._shown(str(error))}") from None
        choice = given.choices[0]
        usage = given.usage or _Usage()
        return AuxiliaryAnswer(
            text=choice.message.content,
            finish=(choice.finish_reason or "stop")[:32],
            prompt_tokens=usage.prompt_tokens,
            tokens=usage.completion_tokens,
        )

    def _words(self, content: bytes) -> str:
        """What the service says about its refusal, in OpenAI's form or any other."""
        said: object = content.decode("utf-8", "replace")
        try:
            body = json_decoder(dict[str, Any]).decode(content)
        except UNREADABLE:
            body = {}
        error = body.get("error")
        if isinstance(error, dict) and isinstance(error.get("message"), str):
            said = error["message"]
        text = self._shown(" ".join(str(said).split()))
        return f": {text}" if text else ""

    def _after_s(self, headers: httpx.Headers) -> float | None:
        """The pause that the service asks for, in seconds or until a date."""
        given = headers.get("retry-after", "").strip()
        try:
            after_s = float(given)
        except ValueError:
            try:
                after_s = parsedate_to_datetime(given).timestamp() - self._clock.now_ns() / 1e9
            except (TypeError, ValueError, OverflowError):
                return None
        return max(0.0, after_s) if math.isfinite(after_s) else None

    def _shown(self, text: str) -> str:
        """A text of the service's as it may be shown: short, and without the key."""
        key = self.address.api_key
        clean = text if key == NO_KEY else text.replace(key, MASK)
        return clean[:_SAID_CHARS]

    def _error(self, what: str, *, fix: str = "see what the service says, then its entry in the file") -> RolloutError:
        return RolloutError(self._named(what), fix=fix)

    def _named(self, what: str) -> str:
        return f"the service of {self._known.who} {what}"

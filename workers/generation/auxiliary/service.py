"""`ModelService`: a model served elsewhere over OpenAI's API, called with bounded retries and answer sizes."""

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
from rftd.streams.spec.engines import OWNERS, AuxiliarySpec, ReachSpec
from rftd.streams.spec.spec import SamplingSpec
from rftd.workers.datasets.message import Message
from rftd.workers.generation.auxiliary.auxiliary_model import AuxiliaryAnswer, ModelAddress
from rftd.workers.generation.auxiliary.retries import Retries
from rftd.workers.generation.auxiliary.service_arguments import ServiceArgs
from rftd.workers.generation.engine import Sampling

NO_KEY: Final = "EMPTY"
"""Key sent to a service without authentication: clients of OpenAI's API refuse an empty key."""
_BUSY: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
"""Status codes for temporary failures, worth a retry."""
_KEY_REFUSED: Final = (401, 403)
"""Status codes of a refused key."""
_SHOWN_CHARS: Final = 300
"""Maximum characters of a service's text in messages."""


class ServiceModel(NamedTuple):
    """How error messages name a service's model, and which field of the experiment file to change."""

    who: str
    """Name of the model in messages."""
    field: str
    """Field of the experiment file with the service's address."""


def auxiliary(spec: AuxiliarySpec) -> ServiceModel:
    """Returns the names of an auxiliary model for error messages."""
    return ServiceModel(f"the auxiliary model {spec.name!r}", "explorer.auxiliary_models")


class ServiceKeyError(RolloutError):
    """A service refused the key; every request with this key will fail."""


class _ChoiceMessage(msgspec.Struct, frozen=True):
    """The message of a choice."""

    content: str
    """Text of the answer."""


class _Choice(msgspec.Struct, frozen=True):
    """One choice of a completion."""

    message: _ChoiceMessage
    """Message with the text of the answer."""
    finish_reason: str | None = None
    """Why the answer ended; None if not reported."""


class _Usage(msgspec.Struct, frozen=True):
    """Token counts of a completion."""

    prompt_tokens: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)] = 0
    """Number of prompt tokens."""
    completion_tokens: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)] = 0
    """Number of answer tokens."""


class _Completion(msgspec.Struct, frozen=True):
    """The body of an answer, as far as used."""

    choices: Annotated[list[_Choice], msgspec.Meta(min_length=1)]
    """Choices of the answer, at least one; only the first one is used."""
    usage: _Usage | None = None
    """Token counts; None if not reported."""


class _Busy(NamedTuple):
    """A temporary failure, worth a retry after `after_s` seconds or a usual pause."""

    why: str
    """Description of the failure, to be put behind the service's name in an error."""
    after_s: float | None = None
    """Pause requested by the service, in seconds; None without a request."""


def service_address(
    spec: AuxiliarySpec,
    environ: Mapping[str, str],
    subject: ServiceModel | None = None,
    *,
    reach: ReachSpec = OWNERS,
) -> ModelAddress:
    """Returns the service's base URL and key, read from the environment where the file names variables.

    `subject` names the model in errors, by default as the auxiliary model of `spec`; `reach` is the experiment's.
    Raises ConfigError naming the variable, never showing a value.
    """
    subject = subject or auxiliary(spec)
    base_url = _read_variable(subject, spec.base_url_env, environ, reach) if spec.base_url_env else spec.base_url
    base_url = base_url.rstrip("/")
    try:
        reach.check(base_url, field=subject.field, variable=spec.base_url_env)
        address = web_address(base_url, field=subject.field)
    except ConfigError as error:
        if reach.restricted and spec.base_url_env:
            raise _withheld_error(subject, spec.base_url_env) from None
        where = f"the environment variable {spec.base_url_env}" if spec.base_url_env else "base_url"
        raise ConfigError(f"{where} of {subject.who} {error.what}", field=subject.field, fix=error.fix) from None
    key = NO_KEY
    if spec.api_key_env:
        if not reach.may_send(spec.api_key_env, address):
            raise _withheld_error(subject, spec.api_key_env)
        key = _read_variable(subject, spec.api_key_env, environ, reach)
    return ModelAddress(base_url, Secret(key), spec.model_name)


def _read_variable(subject: ServiceModel, name: str, environ: Mapping[str, str], reach: ReachSpec) -> str:
    """Returns an environment variable's content. Raises ConfigError for an unset or withheld one."""
    setting = environ.get(name, "").strip() if reach.may_read(name) else ""
    if setting:
        return setting
    if reach.restricted:
        raise _withheld_error(subject, name)
    raise ConfigError(
        f"the environment variable {name}, required by {subject.who}, is not set here",
        field=subject.field,
        fix=f"export {name} where the explorers run, then restart the daemon (or the worker)",
    )


def _withheld_error(subject: ServiceModel, name: str) -> ConfigError:
    """Returns the error for a variable withheld from another user's experiment: equal whether the variable is set or
    not.
    """
    return ConfigError(
        f"the environment variable {name}, required by {subject.who}, is not available to this experiment "
        "for that address",
        field=subject.field,
        fix=f"ask the daemon's owner to set {name}, and to allow it for the service's host",
    )


class ModelService:
    """One model of a service. Everything runs on one event loop; `AuxiliaryModels` brings requests to that loop."""

    def __init__(
        self,
        spec: AuxiliarySpec,
        arguments: ServiceArgs,
        address: ModelAddress,
        *,
        clock: Clock,
        subject: ServiceModel | None = None,
        reach: ReachSpec = OWNERS,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`subject` names the model in errors; `reach` is the experiment's; `transport` is the network's replacement in
        tests.
        """
        self.address = address
        self._subject = subject or auxiliary(spec)
        """Names for error messages."""
        self._spec = spec
        self._arguments = arguments
        self._clock = clock
        self._slots = asyncio.Semaphore(max(1, spec.concurrency))
        """Limit of concurrent requests."""
        if transport is None and reach.restricted:
            transport = PublicTransport(reach.hosts(spec.base_url_env), field=self._subject.field)
        # Redirects are not followed: the key would travel to the redirect's target.
        self._client = httpx.AsyncClient(
            transport=transport,
            timeout=arguments.timeout_s,
            follow_redirects=False,
            limits=httpx.Limits(max_connections=None),
        )
        """HTTP client of the service, with a connection for each concurrent request."""

    def retries(self, random: Random) -> Retries:
        """Returns a new budget of retries for one rollout."""
        return Retries(self._arguments.retries, self._arguments.wait_s, random)

    async def chat(
        self, messages: Sequence[Message], sampling: SamplingSpec | Sampling | None, retries: Retries
    ) -> AuxiliaryAnswer:
        """Returns the assistant's next message. Raises RolloutError as `AuxiliaryModel.chat` does; no error shows the
        key.

        Raises ServiceKeyError if the key is refused.
        """
        body = self._request_body(messages, sampling)
        failures = 0
        while True:
            async with self._slots:
                outcome = await self._attempt(body)
            if isinstance(outcome, AuxiliaryAnswer):
                return outcome
            failures += 1
            pause_s = retries.pause(failures, outcome.after_s)
            if pause_s is None:
                wish = f", and requests {outcome.after_s:g} s more" if outcome.after_s is not None else ""
                raise self._service_error(
                    f"{outcome.why}{wish}; this rollout has retried {retries.used} times and waited "
                    f"{retries.waited_s:.0f} s, of {retries.most} times and {retries.wait_s:g} s",
                    fix="lower explorer.runner_per_model, or raise retries and wait_s in its extra_engine_args",
                )
            await self._clock.sleep(pause_s)

    async def close(self) -> None:
        """Closes the connections to the service. Idempotent."""
        await self._client.aclose()

    def _request_body(self, messages: Sequence[Message], sampling: SamplingSpec | Sampling | None) -> bytes:
        """Returns the request's body for these messages and settings."""
        spec = self._spec
        settings = sampling or SamplingSpec(
            temperature=spec.temperature, top_p=spec.top_p, top_k=spec.top_k, max_tokens=spec.max_response_tokens
        )
        body: dict[str, Any] = {
            "model": spec.model_name,
            "messages": [message.as_dict() for message in messages],
            "temperature": settings.temperature,
        }
        if length := min(filter(None, (settings.max_tokens, spec.max_response_tokens)), default=0):
            body[self._arguments.length_field] = length
        # Only settings other than a service's defaults are sent: many services refuse unknown fields.
        if settings.top_p != 1:
            body["top_p"] = settings.top_p
        if settings.top_k > 0:
            body["top_k"] = settings.top_k
        if settings.presence_penalty:
            body["presence_penalty"] = settings.presence_penalty
        if settings.stop:
            body["stop"] = list(settings.stop)
        return msgspec.json.encode(body | self._arguments.body)

    async def _attempt(self, body: bytes) -> AuxiliaryAnswer | _Busy:
        """Makes one request, without retries."""
        url = f"{self.address.base_url}/chat/completions"
        headers = {"Authorization": f"Bearer {self.address.api_key}", "Content-Type": "application/json"}
        try:
            async with (
                asyncio.timeout(self._arguments.timeout_s),
                self._client.stream("POST", url, content=body, headers=headers) as response,
            ):
                return self._parse_answer(response, await self._read_content(response))
        except TimeoutError:
            return _Busy(f"did not answer within {self._arguments.timeout_s:g} s")
        except httpx.TransportError as error:
            return _Busy(f"cannot be reached: {type(error).__name__}: {self._safe_text(str(error))}")
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            raise self._service_error(
                f"cannot be called: {type(error).__name__}: {self._safe_text(str(error))}"
            ) from None

    async def _read_content(self, response: httpx.Response) -> bytes:
        """Reads the body of an answer. Raises RolloutError for a body over `SERVICE_ANSWER_SIZE_BYTES`."""
        chunks: list[bytes] = []
        size = 0
        async for chunk in response.aiter_bytes():
            chunks.append(chunk)
            size += len(chunk)
            if size > limits.SERVICE_ANSWER_SIZE_BYTES:
                raise self._service_error(f"answered with more than {limits.SERVICE_ANSWER_SIZE_BYTES} bytes")
        return b"".join(chunks)

    def _parse_answer(self, response: httpx.Response, content: bytes) -> AuxiliaryAnswer | _Busy:
        """Returns the answer in a response, or the temporary failure. Raises RolloutError, ServiceKeyError."""
        status = response.status_code
        if status in _KEY_REFUSED:
            # The service's own message is omitted: some services repeat the key in it.
            variable = self._spec.api_key_env
            refused_key = f"the key in the environment variable {variable}" if variable else "a call without a key"
            fix = f"export another {variable} where the explorers run" if variable else "name a variable that holds one"
            raise ServiceKeyError(self._with_name(f"answered {status}: it refuses {refused_key}"), fix=fix)
        if status in _BUSY:
            return _Busy(f"answered {status}{self._message_words(content)}", self._after_s(response.headers))
        if status != httpx.codes.OK:
            raise self._service_error(f"answered {status}{self._message_words(content)}")
        try:
            completion = json_decoder(_Completion).decode(content)
        except UNREADABLE as error:
            raise self._service_error(f"gave an answer of an unexpected shape: {self._safe_text(str(error))}") from None
        choice = completion.choices[0]
        usage = completion.usage or _Usage()
        return AuxiliaryAnswer(
            text=choice.message.content,
            finish=(choice.finish_reason or "stop")[:32],
            prompt_tokens=usage.prompt_tokens,
            tokens=usage.completion_tokens,
        )

    def _message_words(self, content: bytes) -> str:
        """Returns the service's error message, in OpenAI's form or as bare text, to be appended to a status."""
        message: object = content.decode("utf-8", "replace")
        try:
            body = json_decoder(dict[str, Any]).decode(content)
        except UNREADABLE:
            body = {}
        error = body.get("error")
        if isinstance(error, dict) and isinstance(error.get("message"), str):
            message = error["message"]
        text = self._safe_text(" ".join(str(message).split()))
        return f": {text}" if text else ""

    def _after_s(self, headers: httpx.Headers) -> float | None:
        """Returns the pause requested by the service in `Retry-After`, in seconds; the header has seconds or a date."""
        header = headers.get("retry-after", "").strip()
        try:
            after_s = float(header)
        except ValueError:
            try:
                after_s = parsedate_to_datetime(header).timestamp() - self._clock.now_ns() / 1e9
            except (TypeError, ValueError, OverflowError):
                return None
        return max(0.0, after_s) if math.isfinite(after_s) else None

    def _safe_text(self, text: str) -> str:
        """Returns a service's text fit for messages: shortened, and without the key."""
        key = self.address.api_key
        clean = text if key == NO_KEY else text.replace(key, MASK)
        return clean[:_SHOWN_CHARS]

    def _service_error(
        self, problem: str, *, fix: str = "check the service's message, then its entry in the file"
    ) -> RolloutError:
        """Builds the error for a problem with the service."""
        return RolloutError(self._with_name(problem), fix=fix)

    def _with_name(self, problem: str) -> str:
        """Returns the problem with the service's name in front."""
        return f"the service of {self._subject.who} {problem}"

"""The seam over the `tinker` package, whose names are here alone.

The package repeats what was not answered under the same sequence number, with pauses, for minutes; what still fails has
broken its client's sequence, so a run that raised is never asked again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any, Final, TypeVar

import httpx

from rftd.ops.errors import ConfigError, RftdError, RolloutError
from rftd.workers.devices.engine_build import how_to_install
from rftd.workers.engines.tinker.access import FIELD, UNREADABLE, Access
from rftd.workers.engines.tinker.service import (
    AdamStep,
    AdapterShape,
    Loss,
    PassAnswer,
    SampleAnswer,
    ServiceSampling,
    TokenRow,
)

T = TypeVar("T")

_PROBE_S: Final = 5.0
_CLOSE_S: Final = 10.0
_GONE: Final = (404, 410)
"""Answers to a name that the service does not have."""
_REFUSED: Final = (400, *_GONE)
"""Answers to a request that is made of such a name."""
_TELEMETRY: Final = "TINKER_TELEMETRY"


def connect(access: Access) -> SdkService:
    """The service under this key. Raises ConfigError if the package is not installed; asks nothing yet."""
    # Before the import: the package reads it when a client is made, and would report to its makers.
    os.environ[_TELEMETRY] = "0"
    try:
        tinker = import_module("tinker")
    except ImportError as error:
        raise ConfigError(
            f"the tinker package is not installed here: {error}",
            field=FIELD,
            fix=how_to_install("tinker"),
        ) from error
    return SdkService(tinker, access)


class SdkService:
    """Implements `TinkerService`."""

    def __init__(self, package: Any, access: Access) -> None:
        self._package = package
        self._access = access
        self._client: Any = None
        self._rest: Any = None

    def new_run(self, base_model: str, shape: AdapterShape) -> SdkRun:
        """A fresh adapter. Raises ConfigError for a model that the service does not have."""
        doing = f"begin with {base_model}"
        with self._said(
            doing, lambda said: self._access.unknown_model(base_model, said), there=lambda: self._offers(base_model)
        ):
            made = self._opened().create_lora_training_client(
                base_model,
                rank=shape.rank,
                seed=shape.seed,
                train_mlp=shape.train_mlp,
                train_attn=shape.train_attn,
                train_unembed=shape.train_unembed,
            )
            return SdkRun(self, _made(made))

    def run_from(self, path: str, base_model: str, *, optimizer: bool) -> SdkRun:
        """A run that begins with saved weights. Raises DataError if the service has forgotten them."""
        doing = f"load {path}"
        with self._said(doing, lambda said: self._access.forgotten(path, said), there=lambda: self.has(path)):
            client = self._opened()
            if optimizer:
                return SdkRun(self, _made(client.create_training_client_from_state_with_optimizer(path)))
            return SdkRun(self, _made(client.create_training_client_from_state(path)))

    def sampler(self, path: str) -> SdkSampler:
        """A sampler of saved weights. Raises RolloutError if the service has none under this path."""
        with self._said(f"load {path}", self._no_weights(path)):
            return SdkSampler(self, _made(self._opened().create_sampling_client(model_path=path)), path)

    def has(self, path: str) -> bool:
        """False if the service says so; one that does not answer has them still."""
        run, name = _parts(path)
        try:
            # The list has a run's states and its weights for samplers; nothing tells of one path of the latter.
            with self._said(f"look for {path}", lambda said: _NothingThere(said), _GONE):
                found = self._asked().list_checkpoints(run).result()
                return any(_parts(each.tinker_path)[1] == name for each in found.checkpoints)
        except _NothingThere:
            return False
        except RftdError:
            return True

    def delete(self, path: str) -> None:
        """Deletes what lies there, if anything does."""
        with suppress(_NothingThere), self._said(f"delete {path}", lambda said: _NothingThere(said), _GONE):
            run, name = _parts(path)
            self._asked().delete_checkpoint(run, name).result()

    def answers(self) -> bool:
        """True if the service answers at all, whatever it says."""
        # By a request of its own: the package's client would repeat it for minutes.
        base_url = self._access.base_url or _default_base_url()
        try:
            return httpx.get(f"{base_url.rstrip('/')}/api/v1/healthz", timeout=_PROBE_S).status_code < 500
        except httpx.HTTPError:
            return False

    def close(self) -> None:
        """Ends the session, so that the service frees what it keeps for it."""
        client = self._client
        self._client = None
        if client is not None:
            with suppress(Exception):
                client.close("success").result(timeout=_CLOSE_S)

    def _opened(self) -> Any:
        if self._client is None:
            self._client = self._package.ServiceClient(
                api_key=self._access.key.reveal(),
                base_url=self._access.base_url or None,
                user_metadata={"by": "rftd"},
            )
        return self._client

    def _asked(self) -> Any:
        """The client of requests that belong to no session."""
        if self._rest is None:
            if hasattr(self._package, "RestClient"):
                self._rest = self._package.RestClient(
                    api_key=self._access.key.reveal(), base_url=self._access.base_url or None
                )
            else:  # an early release has one for each session
                self._rest = self._opened().create_rest_client()
        return self._rest

    def _offers(self, base_model: str) -> bool:
        """True if the service says that it has the model."""
        with suppress(Exception):
            rest = self._asked()
            # An early release's client for lists does not have this one.
            early = not hasattr(rest, "get_server_capabilities")
            found = (self._opened() if early else rest).get_server_capabilities()
            return any(each.model_name == base_model for each in _made(found).supported_models)
        return False

    @contextmanager
    def _said(
        self,
        doing: str,
        unknown: Callable[[str], Exception] | None = None,
        by: Container[int] = _REFUSED,
        there: Callable[[], bool] = lambda: False,
    ) -> Iterator[None]:
        """Turns the package's errors into ours; `unknown` makes that of a name which the service does not have.

        The answers `by` which it says so are statuses. A service that is full, or fails, may answer likewise: then what
        is `there` all the same is not unknown.
        """
        try:
            yield
        except RftdError:
            raise
        except Exception as error:
            # Every error of the package is one of these; itself it is raised for the key alone.
            if type(error).__name__ == "TinkerError" and "api_key" in str(error):
                raise self._access.no_key(str(error)) from None
            status = _status(error)
            if status in by and unknown is not None and not there():
                raise unknown(str(error)) from None
            # Without the cause: a library's error quotes requests, and those have the key.
            raise self._access.error(status, f"{type(error).__name__}: {error}", doing) from None

    def _no_weights(self, path: str) -> Callable[[str], Exception]:
        return lambda said: RolloutError(self._access.forgotten(path, said).what)

    def wait(self, doing: str, future: Any) -> Any:
        """The result of one of the package's futures. Raises what `Access.error` makes of its errors."""
        with self._said(doing):
            return future.result()

    async def drawn(self, path: str, future: Awaitable[T] | Future[T]) -> T:
        """The answer of the weights of a path once it is there, likewise, without a thread of its own."""
        # Open servers look for the weights only now.
        with self._said("generate", self._no_weights(path), _GONE):
            # Early releases give one that only threads can wait for.
            return await (future if isinstance(future, Awaitable) else asyncio.wrap_future(future))

    def datum(self, row: TokenRow) -> Any:
        """A row in the package's words."""
        types = self._package.types
        return types.Datum(
            model_input=types.ModelInput.from_ints(row.tokens.tolist()),
            loss_fn_inputs={"target_tokens": row.targets, **row.columns},
        )

    def adam(self, step: AdamStep) -> Any:
        """An optimizer step in the package's words."""
        return self._package.types.AdamParams(
            learning_rate=step.rate,
            beta1=step.betas[0],
            beta2=step.betas[1],
            eps=step.eps,
            weight_decay=step.weight_decay,
            grad_clip_norm=step.clip,
        )

    def draw(self, draw: ServiceSampling) -> Any:
        """Sampling settings in the package's words."""
        return self._package.types.SamplingParams(
            max_tokens=draw.max_tokens,
            temperature=draw.temperature,
            top_p=draw.top_p,
            top_k=draw.top_k,
            seed=draw.seed,
            stop=None if draw.stop is None else list(draw.stop),
        )

    def prompt(self, tokens: Sequence[int]) -> Any:
        """A prompt in the package's words."""
        return self._package.types.ModelInput.from_ints(list(tokens))


class _NothingThere(Exception):
    """There was nothing to delete."""


class SdkRun:
    """Implements `TrainingRun`."""

    def __init__(self, service: SdkService, client: Any) -> None:
        self._service = service
        self._client = client

    @property
    def id(self) -> str:
        return str(self._client.model_id)

    def forward(self, rows: Sequence[TokenRow]) -> PassAnswer:
        data = [self._service.datum(row) for row in rows]
        return _passed(self._service.wait("compute", self._client.forward(data, "cross_entropy")))

    def gradient(self, rows: Sequence[TokenRow], loss: Loss, config: Mapping[str, float]) -> PassAnswer:
        data = [self._service.datum(row) for row in rows]
        sent = self._client.forward_backward(data, loss, dict(config) or None)
        return _passed(self._service.wait("compute a gradient", sent))

    def step(self, adam: AdamStep, rows: Sequence[TokenRow] | None = None) -> Mapping[str, Any]:
        # Both before the first answer: the service keeps their order, and nobody waits twice.
        data = [self._service.datum(row) for row in rows or ()]
        gradient = self._client.forward_backward(data, "cross_entropy") if data else None
        stepped = self._client.optim_step(self._service.adam(adam))
        if gradient is not None:
            self._service.wait("compute a gradient", gradient)
        return dict(self._service.wait("take a step", stepped).metrics or {})

    def save_state(self, name: str) -> Any:
        return self._service.wait("save the state", self._client.save_state(name)).path

    def save_weights(self, name: str) -> Callable[[], Any]:
        saved = self._client.save_weights_for_sampler(name)
        return lambda: self._service.wait("save weights", saved).path


class SdkSampler:
    """Implements `Sampler`."""

    def __init__(self, service: SdkService, client: Any, path: str) -> None:
        self._service = service
        self._client = client
        self._path = path

    async def sample(self, prompt: Sequence[int], draw: ServiceSampling) -> SampleAnswer:
        asked = self._client.sample(self._service.prompt(prompt), 1, self._service.draw(draw))
        try:
            answer = await self._service.drawn(self._path, asked)
        except RftdError as error:
            raise RolloutError(error.what, field=error.field, fix=error.fix) from None
        found = answer.sequences
        if len(found) != 1:
            raise RolloutError(
                f"the Tinker service gave {len(found)} responses, and 1 was asked for", field="sequences"
            )
        return SampleAnswer(tokens=found[0].tokens, logprobs=found[0].logprobs, stop_reason=found[0].stop_reason)


def _passed(output: Any) -> PassAnswer:
    rows = [{name: getattr(value, "data", None) for name, value in each.items()} for each in output.loss_fn_outputs]
    return PassAnswer(rows=rows, metrics=dict(output.metrics))


def _parts(path: str) -> tuple[str, str]:
    """The run of a path, and the name of what it saved there, with its kind."""
    run, _, name = path.removeprefix("tinker://").partition("/")
    # Open servers leave the kind of weights for samplers out.
    return run, name if "/" in name else f"sampler_weights/{name}"


def _made(client: Any) -> Any:
    """A client of the package, which early releases give at once, and later ones as a future."""
    return client.result() if hasattr(client, "result") else client


def _status(error: BaseException) -> int:
    """The HTTP status that an error of the package came from; 0: nothing came; `UNREADABLE`: not what it can read."""
    seen: BaseException | None = error
    while seen is not None:
        status = getattr(seen, "status_code", None)
        # The status of an answer of another shape is that of success.
        if isinstance(status, int) and status >= 400:
            return status
        # What was begun and failed later comes with the party whose fault it is.
        category = getattr(seen, "category", None)
        if category is not None:
            return 400 if str(getattr(category, "value", category)).lower() == "user" else 500
        seen = seen.__cause__
    if any(each.__name__ in ("APIConnectionError", "TimeoutException", "TimeoutError") for each in type(error).__mro__):
        return 0
    return UNREADABLE


def _default_base_url() -> str:
    return str(import_module("tinker.lib.base_url").DEFAULT_BASE_URL)

"""The seam over the `tinker` package, the only user of the package's names.

The package repeats unanswered requests under the same sequence number, with pauses, for minutes; a request that fails
all the same has broken the client's sequence, so a run that raised is never used again.
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
"""Type of the package's answer."""

_PROBE_S: Final = 5.0
"""Time-out of a probe of the service, in seconds."""
_CLOSE_S: Final = 10.0
"""Maximum seconds to wait for the end of the session."""
_UNKNOWN_NAME_STATUSES: Final = (404, 410)
"""Status codes for an unknown name."""
_REFUSED: Final = (400, *_UNKNOWN_NAME_STATUSES)
"""Status codes for a request with an unknown name."""
_TELEMETRY: Final = "TINKER_TELEMETRY"
"""Environment variable that switches off the package's reports to its makers."""


def connect(access: Access) -> SdkService:
    """Returns the service for this key, without a request yet. Raises ConfigError if the package is not installed."""
    # Before the import: the package reads the variable when a client is made, and would report to its makers.
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
    """Implements `TinkerService` with the clients of the `tinker` package, opened at first use."""

    def __init__(self, package: Any, access: Access) -> None:
        """Prepares the service with the imported `package`; no request is sent yet."""
        self._package = package
        self._access = access
        self._client: Any = None
        self._rest_cache: Any = None

    def new_run(self, base_model: str, shape: AdapterShape) -> SdkRun:
        """Creates a fresh adapter. Raises ConfigError for a model unknown to the service."""
        doing = f"begin with {base_model}"
        with self._translating_errors(
            doing,
            lambda detail: self._access.unknown_model_error(base_model, detail),
            exists=lambda: self._has_model(base_model),
        ):
            client = self._service_client().create_lora_training_client(
                base_model,
                rank=shape.rank,
                seed=shape.seed,
                train_mlp=shape.train_mlp,
                train_attn=shape.train_attn,
                train_unembed=shape.train_unembed,
            )
            return SdkRun(self, _result_of(client))

    def run_from(self, path: str, base_model: str, *, optimizer: bool) -> SdkRun:
        """Creates a run from saved weights. Raises DataError if they are deleted at the service."""
        doing = f"load {path}"
        with self._translating_errors(
            doing, lambda detail: self._access.forgotten_error(path, detail), exists=lambda: self.has(path)
        ):
            client = self._service_client()
            if optimizer:
                return SdkRun(self, _result_of(client.create_training_client_from_state_with_optimizer(path)))
            return SdkRun(self, _result_of(client.create_training_client_from_state(path)))

    def sampler(self, path: str) -> SdkSampler:
        """Creates a sampler of saved weights. Raises RolloutError if the service has none under this path."""
        with self._translating_errors(f"load {path}", self._no_weights(path)):
            return SdkSampler(self, _result_of(self._service_client().create_sampling_client(model_path=path)), path)

    def has(self, path: str) -> bool:
        """False if the service denies having the path; an unresponsive service counts as having it."""
        run, name = _split_path(path)
        try:
            # The list has a run's states and sampler weights; no request exists for a single path of sampler weights.
            with self._translating_errors(
                f"look for {path}", lambda detail: _UnknownNameError(detail), _UNKNOWN_NAME_STATUSES
            ):
                listing = self._rest_client().list_checkpoints(run).result()
                return any(_split_path(saved.tinker_path)[1] == name for saved in listing.checkpoints)
        except _UnknownNameError:
            return False
        except RftdError:
            return True

    def delete(self, path: str) -> None:
        """Deletes a path; a missing path is no error."""
        with (
            suppress(_UnknownNameError),
            self._translating_errors(
                f"delete {path}", lambda detail: _UnknownNameError(detail), _UNKNOWN_NAME_STATUSES
            ),
        ):
            run, name = _split_path(path)
            self._rest_client().delete_checkpoint(run, name).result()

    def answers(self) -> bool:
        """True if the service answers at all, whatever the answer."""
        # By a separate request: the package's client would repeat it for minutes.
        base_url = self._access.base_url or _default_base_url()
        try:
            return httpx.get(f"{base_url.rstrip('/')}/api/v1/healthz", timeout=_PROBE_S).status_code < 500
        except httpx.HTTPError:
            return False

    def close(self) -> None:
        """Ends the session, so that the service frees the session's resources."""
        client = self._client
        self._client = None
        if client is not None:
            with suppress(Exception):
                client.close("success").result(timeout=_CLOSE_S)

    def _service_client(self) -> Any:
        """Returns the package's client with a session, opened at the first call."""
        if self._client is None:
            self._client = self._package.ServiceClient(
                api_key=self._access.key.reveal(),
                base_url=self._access.base_url or None,
                user_metadata={"by": "rftd"},
            )
        return self._client

    def _rest_client(self) -> Any:
        """Returns the client for requests without a session."""
        if self._rest_cache is None:
            if hasattr(self._package, "RestClient"):
                self._rest_cache = self._package.RestClient(
                    api_key=self._access.key.reveal(), base_url=self._access.base_url or None
                )
            else:  # an early release has a client for each session
                self._rest_cache = self._service_client().create_rest_client()
        return self._rest_cache

    def _has_model(self, base_model: str) -> bool:
        """True if the service lists the model."""
        with suppress(Exception):
            client = self._rest_client()
            # An early release's client for lists lacks this request.
            early_release = not hasattr(client, "get_server_capabilities")
            capabilities = (self._service_client() if early_release else client).get_server_capabilities()
            return any(model.model_name == base_model for model in _result_of(capabilities).supported_models)
        return False

    @contextmanager
    def _translating_errors(
        self,
        doing: str,
        error_of_unknown: Callable[[str], Exception] | None = None,
        statuses: Container[int] = _REFUSED,
        exists: Callable[[], bool] = lambda: False,
    ) -> Iterator[None]:
        """Translates the package's errors; `error_of_unknown` makes the error for a name unknown to the service.

        An unknown name is recognised by `statuses`. A full or failing service may answer likewise, so the name is not
        unknown if it `exists` all the same.
        """
        try:
            yield
        except RftdError:
            raise
        except Exception as error:
            # All errors of the package derive from TinkerError; the base class itself is raised only for the key.
            if type(error).__name__ == "TinkerError" and "api_key" in str(error):
                raise self._access.refused_key_error(str(error)) from None
            status = _status(error)
            if status in statuses and error_of_unknown is not None and not exists():
                raise error_of_unknown(str(error)) from None
            # Without the cause: a library's error quotes requests, which contain the key.
            raise self._access.error(status, f"{type(error).__name__}: {error}", doing) from None

    def _no_weights(self, path: str) -> Callable[[str], Exception]:
        """Returns a function from the service's text to the error for missing weights."""
        return lambda detail: RolloutError(self._access.forgotten_error(path, detail).what)

    def wait(self, doing: str, future: Any) -> Any:
        """Waits for one of the package's futures. Raises the errors of `Access.error`."""
        with self._translating_errors(doing):
            return future.result()

    async def await_response(self, path: str, future: Awaitable[T] | Future[T]) -> T:
        """Awaits a response drawn with the weights of a path, without a separate thread. Raises the errors of
        `Access.error`.
        """
        # Open servers look up the weights only now.
        with self._translating_errors("generate", self._no_weights(path), _UNKNOWN_NAME_STATUSES):
            # Early releases return a future for threads only.
            return await (future if isinstance(future, Awaitable) else asyncio.wrap_future(future))

    def datum(self, row: TokenRow) -> Any:
        """Returns a row of tokens, targets and columns as the package's `Datum`."""
        types = self._package.types
        return types.Datum(
            model_input=types.ModelInput.from_ints(row.tokens.tolist()),
            loss_fn_inputs={"target_tokens": row.targets, **row.columns},
        )

    def adam(self, step: AdamStep) -> Any:
        """Returns the settings of one optimizer step as the package's `AdamParams`."""
        return self._package.types.AdamParams(
            learning_rate=step.rate,
            beta1=step.betas[0],
            beta2=step.betas[1],
            eps=step.eps,
            weight_decay=step.weight_decay,
            grad_clip_norm=step.clip,
        )

    def draw(self, draw: ServiceSampling) -> Any:
        """Returns the settings of one response as the package's `SamplingParams`."""
        return self._package.types.SamplingParams(
            max_tokens=draw.max_tokens,
            temperature=draw.temperature,
            top_p=draw.top_p,
            top_k=draw.top_k,
            seed=draw.seed,
            stop=None if draw.stop is None else list(draw.stop),
        )

    def prompt(self, tokens: Sequence[int]) -> Any:
        """Returns the ids of a prompt as the package's `ModelInput`."""
        return self._package.types.ModelInput.from_ints(list(tokens))


class _UnknownNameError(Exception):
    """The service does not have the name."""


class SdkRun:
    """Implements `TrainingRun` with a training client of the package."""

    def __init__(self, service: SdkService, client: Any) -> None:
        """Wraps a training client of the package."""
        self._service = service
        self._client = client

    @property
    def id(self) -> str:
        """Unique name of the run at the service."""
        return str(self._client.model_id)

    def forward(self, rows: Sequence[TokenRow]) -> PassAnswer:
        """Computes log-probabilities under the current weights, without a gradient."""
        datums = [self._service.datum(row) for row in rows]
        return _pass_answer(self._service.wait("compute", self._client.forward(datums, "cross_entropy")))

    def gradient(self, rows: Sequence[TokenRow], loss: Loss, config: Mapping[str, float]) -> PassAnswer:
        """Adds the gradient of a loss of the service to the next step's gradient."""
        datums = [self._service.datum(row) for row in rows]
        future = self._client.forward_backward(datums, loss, dict(config) or None)
        return _pass_answer(self._service.wait("compute a gradient", future))

    def step(self, adam: AdamStep, rows: Sequence[TokenRow] | None = None) -> Mapping[str, Any]:
        """Takes one optimizer step and returns the figures; with rows, their `cross_entropy` gradient is sent along."""
        # Both sent before the first answer: the service preserves their order, and one wait suffices.
        datums = [self._service.datum(row) for row in rows or ()]
        gradient = self._client.forward_backward(datums, "cross_entropy") if datums else None
        stepped = self._client.optim_step(self._service.adam(adam))
        if gradient is not None:
            self._service.wait("compute a gradient", gradient)
        return dict(self._service.wait("take a step", stepped).metrics or {})

    def save_state(self, name: str) -> Any:
        """Saves weights and optimizer, and returns the path for loading them."""
        return self._service.wait("save the state", self._client.save_state(name)).path

    def save_weights(self, name: str) -> Callable[[], Any]:
        """Requests saved weights for samplers; returns a function that waits for their path."""
        saved = self._client.save_weights_for_sampler(name)
        return lambda: self._service.wait("save weights", saved).path


class SdkSampler:
    """Implements `Sampler` with a sampling client of the package."""

    def __init__(self, service: SdkService, client: Any, path: str) -> None:
        """Wraps a sampling client of the package, for the weights of `path`."""
        self._service = service
        self._client = client
        self._path = path

    async def sample(self, prompt: Sequence[int], draw: ServiceSampling) -> SampleAnswer:
        """Draws one response. Raises RolloutError."""
        future = self._client.sample(self._service.prompt(prompt), 1, self._service.draw(draw))
        try:
            answer = await self._service.await_response(self._path, future)
        except RftdError as error:
            raise RolloutError(error.what, field=error.field, fix=error.fix) from None
        sequences = answer.sequences
        if len(sequences) != 1:
            raise RolloutError(f"the Tinker service gave {len(sequences)} responses instead of 1", field="sequences")
        return SampleAnswer(
            tokens=sequences[0].tokens, logprobs=sequences[0].logprobs, stop_reason=sequences[0].stop_reason
        )


def _pass_answer(output: Any) -> PassAnswer:
    """Returns the package's answer to a pass in plain form."""
    rows = [
        {name: getattr(tensor, "data", None) for name, tensor in output_row.items()}
        for output_row in output.loss_fn_outputs
    ]
    return PassAnswer(rows=rows, metrics=dict(output.metrics))


def _split_path(path: str) -> tuple[str, str]:
    """Splits a path into its run, and the name with the kind of saved data."""
    run, _, name = path.removeprefix("tinker://").partition("/")
    # Open servers omit the kind of sampler weights.
    return run, name if "/" in name else f"sampler_weights/{name}"


def _result_of(client: Any) -> Any:
    """Returns a client of the package, waiting for it where the release returns a future."""
    return client.result() if hasattr(client, "result") else client


def _status(error: BaseException) -> int:
    """Returns the HTTP status behind an error of the package; 0: no answer; `UNREADABLE`: an unreadable answer."""
    cause: BaseException | None = error
    while cause is not None:
        status = getattr(cause, "status_code", None)
        # An answer of an unreadable shape has the status of success.
        if isinstance(status, int) and status >= 400:
            return status
        # A request accepted first and failed later carries the party at fault.
        category = getattr(cause, "category", None)
        if category is not None:
            return 400 if str(getattr(category, "value", category)).lower() == "user" else 500
        cause = cause.__cause__
    if any(
        error_class.__name__ in ("APIConnectionError", "TimeoutException", "TimeoutError")
        for error_class in type(error).__mro__
    ):
        return 0
    return UNREADABLE


def _default_base_url() -> str:
    """Returns the package's default address of the service."""
    return str(import_module("tinker.lib.base_url").DEFAULT_BASE_URL)

"""`AuxiliaryModels`: an explorer's auxiliary models. `RolloutModels`: the models for one rollout, with a record."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from uuid import UUID

import msgspec
import xxhash

from rftd.ops import limits
from rftd.ops.clock import Clock
from rftd.ops.decoding import converted
from rftd.ops.errors import RolloutError
from rftd.ops.ids import derive
from rftd.ops.redaction import Secret
from rftd.streams.events.experience import AuxiliaryTurn
from rftd.streams.spec.engines import AuxiliarySpec
from rftd.streams.spec.explorer_devices import auxiliary_places
from rftd.streams.spec.spec import ExperimentSpec, SamplingSpec, StageSpec
from rftd.workers.datasets.message import Message
from rftd.workers.generation.auxiliary.auxiliary_model import AuxiliaryAnswer, AuxiliaryModel, ModelAddress
from rftd.workers.generation.auxiliary.own_engine import AuxiliaryEngine, AuxiliaryEngines
from rftd.workers.generation.auxiliary.retries import Retries
from rftd.workers.generation.call_spans import note_usage, service_call
from rftd.workers.generation.endpoint.server import ModelEndpoint
from rftd.workers.generation.model import Model
from rftd.workers.generation.response import Response

if TYPE_CHECKING:
    import httpx

    from rftd.workers.generation.auxiliary.service import ModelService

T = TypeVar("T")
"""Type of the work's outcome."""


class AuxiliaryModels:
    """Auxiliary models of an experiment's stages. Made on the explorer's loop; rollouts may run on other threads."""

    def __init__(
        self,
        experiment: ExperimentSpec,
        *,
        clock: Clock,
        environ: Mapping[str, str],
        random: Random,
        endpoint: ModelEndpoint | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Raises ConfigError if a variable required by a service is not in `environ`.

        `random` spreads the pauses of retries; `endpoint` serves engines to programs; `transport` replaces the network
        in tests.
        """
        self.endpoint = endpoint
        self._random = random
        self._loop = asyncio.get_running_loop()
        """The explorer's event loop."""
        self._tasks: asyncio.TaskGroup | None = None
        """Group of the tasks that open engines; None outside of `run`."""
        self._up = asyncio.Event()
        """Set once `run` works."""
        self._open_model: list[tuple[AuxiliarySpec, ModelService | AuxiliaryEngines]] = []
        """Opened models, each once for all stages that use it."""
        for spec, stage, gpus in auxiliary_places(experiment.stages):
            if spec.served:
                # Imported late: httpx is a fifth of a worker's imports, and few experiments use a service.
                from rftd.workers.generation.auxiliary.service import ModelService, service_address
                from rftd.workers.generation.auxiliary.service_arguments import ServiceArgs

                address = service_address(spec, environ, reach=experiment.reach)
                arguments = converted(spec.engine_args, ServiceArgs)
                service = ModelService(
                    spec, arguments, address, clock=clock, reach=experiment.reach, transport=transport
                )
                self._open_model.append((spec, service))
            else:
                self._open_model.append((spec, AuxiliaryEngines(spec, experiment, stage, clock, gpus=gpus)))

    async def run(self) -> None:
        """Opens engines at their first request, until cancelled; then closes them and all connections."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                self._up.set()
                await asyncio.Event().wait()
        finally:
            for _, source in self._open_model:
                await source.close()

    def check_lives(self) -> None:
        """Raises WorkError if an engine of an auxiliary model has failed for good in this process."""
        for _, source in self._open_model:
            if isinstance(source, AuxiliaryEngines):
                source.check_lives()

    def of(self, stage: StageSpec, rollout: UUID, seed: UUID) -> RolloutModels:
        """Returns a stage's models for one attempt at a rollout; the seeds of engines derive from `seed`."""
        record = RolloutModels()
        for position, spec in enumerate(stage.auxiliary):
            source = next(source for opened_spec, source in self._open_model if opened_spec == spec)
            if isinstance(source, AuxiliaryEngines):
                ids = (derive(rollout, "auxiliary", position), derive(seed, "auxiliary", position))
                record.add(_EngineModelOfRollout(self, spec, source, ids, record))
            else:
                retries = source.retries(self._random)
                record.add(_ServiceModelOfRollout(self, spec, source, retries, record))
        return record

    async def on_explorer_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the explorer's loop, from whichever loop the caller is on."""
        if asyncio.get_running_loop() is self._loop:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def model(self, engine: AuxiliaryEngine, spec: AuxiliarySpec, ids: tuple[UUID, UUID]) -> Model:
        """Returns a model for one rollout (`ids`: its id and seed) on an auxiliary engine, which is opened if
        necessary.
        """
        await self._up.wait()
        assert self._tasks is not None
        opened = await engine.opened(self._tasks)
        return Model(
            opened.engine,
            opened.tokenizer,
            spec=opened.model,
            sampling=_default_sampling(spec),
            rollout=ids[0],
            seed=ids[1],
            endpoint=self.endpoint,
        )


class RolloutModels:
    """The auxiliary models of one rollout, in the order of the file, and the record of their answers."""

    def __init__(self) -> None:
        self.models: tuple[AuxiliaryModel, ...] = ()
        """The models, in the order of the file."""
        self.turns: tuple[AuxiliaryTurn, ...] = ()
        """Answers recorded until now; long texts are cut, and answers beyond the limit left out."""
        self._chars = 0
        """Number of characters of the answers recorded so far, up to `AUXILIARY_TEXT_CHARS`."""

    def add(self, model: AuxiliaryModel) -> None:
        """Adds the next model in the order of the experiment file."""
        self.models += (model,)

    def note(self, model: str, question: str, answer: AuxiliaryAnswer) -> None:
        """Records an answer to the question with the digest `question`."""
        if len(self.turns) >= limits.AUXILIARY_TURNS:
            return
        text = answer.text[: limits.AUXILIARY_TEXT_CHARS - self._chars]
        self._chars += len(text)
        turn = AuxiliaryTurn(model, question, text, len(answer.text), answer.tokens, answer.prompt_tokens)
        self.turns += (turn,)


class _ServiceModelOfRollout:
    """Implements `AuxiliaryModel` for one rollout, by a service."""

    def __init__(
        self,
        models: AuxiliaryModels,
        spec: AuxiliarySpec,
        service: ModelService,
        retries: Retries,
        record: RolloutModels,
    ) -> None:
        """Answers are recorded in `record`; `retries` is the rollout's budget of retries for all questions."""
        self._models = models
        self._spec = spec
        self._service = service
        self._retries = retries
        self._record = record

    @property
    def name(self) -> str:
        """Name of the model in the experiment file."""
        return self._spec.name

    async def chat(self, messages: Sequence[Message], *, sampling: SamplingSpec | None = None) -> AuxiliaryAnswer:
        """Returns the service's answer; see `AuxiliaryModel.chat`."""
        with service_call(self.name) as span:
            answer = await self._models.on_explorer_loop(self._service.chat(messages, sampling, self._retries))
            if span is not None:
                note_usage(span, answer.prompt_tokens, answer.tokens)
        self._record.note(self.name, question_digest(messages, sampling or _default_sampling(self._spec)), answer)
        return answer

    @asynccontextmanager
    async def served(self) -> AsyncIterator[ModelAddress]:
        """A context with the service's URL and key; see `AuxiliaryModel.served`."""
        yield self._service.address


class _EngineModelOfRollout:
    """Implements `AuxiliaryModel` for one rollout, by one of the explorer's separate engines."""

    def __init__(
        self,
        models: AuxiliaryModels,
        spec: AuxiliarySpec,
        engines: AuxiliaryEngines,
        ids: tuple[UUID, UUID],
        record: RolloutModels,
    ) -> None:
        """`ids` are the rollout's id and the source of its seeds; answers are recorded in `record`."""
        self._models = models
        self._spec = spec
        self._engines = engines
        self._engine: AuxiliaryEngine | None = None
        """Engine of the rollout; None before its first question."""
        self._ids = ids
        self._record = record
        self._model: Model | None = None
        """Model on the rollout's engine, used for all of its questions; None before the first question."""

    @property
    def name(self) -> str:
        """Name of the model in the experiment file."""
        return self._spec.name

    async def chat(self, messages: Sequence[Message], *, sampling: SamplingSpec | None = None) -> AuxiliaryAnswer:
        """Returns the engine's answer; see `AuxiliaryModel.chat`."""
        response = await self._models.on_explorer_loop(self._chat(messages, sampling))
        if response.truncated:
            raise RolloutError(
                f"a question to the auxiliary model {self.name!r} has more than {self._spec.max_prompt_tokens} tokens",
                fix="raise max_prompt_tokens (or max_model_len) of its entry in explorer.auxiliary_models",
            )
        answer = _answer_of(response)
        self._record.note(self.name, question_digest(messages, sampling or _default_sampling(self._spec)), answer)
        return answer

    @asynccontextmanager
    async def served(self) -> AsyncIterator[ModelAddress]:
        """A context with a URL and key for the engine; see `AuxiliaryModel.served`."""
        model = await self._models.on_explorer_loop(self._open_model())
        async with model.served() as served:
            try:
                yield ModelAddress(served.base_url, Secret(served.api_key), model.name)
            finally:
                for turn in served.turns:
                    self._record.note(self.name, _prompt_digest(turn), _answer_of(turn))

    async def _chat(self, messages: Sequence[Message], sampling: SamplingSpec | None) -> Response:
        """Asks the engine, counted as an unanswered question meanwhile."""
        engine = self._engine_of_rollout()
        engine.questions += 1
        try:
            return await (await self._open_model()).chat(messages, sampling=sampling)
        finally:
            engine.questions -= 1

    def _engine_of_rollout(self) -> AuxiliaryEngine:
        """The engine of the rollout, chosen at its first question."""
        if self._engine is None:
            self._engine = self._engines.least_busy()
        return self._engine

    async def _open_model(self) -> Model:
        # One model for all questions of the rollout: its numbering gives equal questions different seeds.
        """Returns the one model for all questions of the rollout."""
        if self._model is None:
            model = await self._models.model(self._engine_of_rollout(), self._spec, self._ids)
            self._model = self._model or model
        return self._model


ModelsOfRollout: TypeAlias = Callable[[UUID, UUID], RolloutModels]
"""Makes the auxiliary models for one attempt at a rollout, from the rollout's id and the id behind the seeds."""


def no_auxiliary_models(rollout: UUID, seed: UUID) -> RolloutModels:
    """Returns the empty set of models, for an experiment without auxiliary models."""
    return RolloutModels()


def question_digest(messages: Sequence[Message], sampling: SamplingSpec) -> str:
    """Returns the xxh3-128 (hex) of a question and its settings."""
    digest: str = xxhash.xxh3_128(msgspec.json.encode([messages, sampling])).hexdigest()
    return digest


def _prompt_digest(response: Response) -> str:
    """Returns the xxh3-128 (hex) of a question known only as token ids."""
    digest: str = xxhash.xxh3_128(msgspec.json.encode(response.prompt)).hexdigest()
    return digest


def _answer_of(response: Response) -> AuxiliaryAnswer:
    """Returns the response as an answer of an auxiliary model."""
    return AuxiliaryAnswer(
        text=response.text,
        finish=response.finish,
        prompt_tokens=len(response.prompt),
        tokens=len(response.tokens),
    )


def _default_sampling(spec: AuxiliarySpec) -> SamplingSpec:
    """Returns the sampling settings of the experiment file."""
    return SamplingSpec(
        temperature=spec.temperature, top_p=spec.top_p, top_k=spec.top_k, max_tokens=spec.max_response_tokens
    )

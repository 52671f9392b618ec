"""`TrinityModel`: the trained model, with the methods of Trinity-RFT's `ModelWrapper` used by workflows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final, TypeVar

import msgspec
import torch

from rftd.ops.errors import RolloutError
from rftd.streams.spec.spec import SamplingSpec
from rftd.workers.datasets.message import Message, parse_messages
from rftd.workers.generation.model import HttpModel, Model
from rftd.workers.generation.response import Response
from rftd.workers.workflows.trinity.calls import RolloutThread
from rftd.workers.workflows.trinity.draws import DrawLedger
from rftd.workers.workflows.trinity.experience import TrinityExperience
from rftd.workers.workflows.trinity.openai import open_client

T = TypeVar("T")

_SETTINGS: Final = (
    "temperature",
    "top_p",
    "top_k",
    "max_tokens",
    "min_tokens",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "ignore_eos",
)
_RECORDED: Final = ("logprobs", "return_token_ids")
"""Arguments without effect: ids and log-probabilities are recorded in any case."""


class ModelOfRollout:
    """One rollout's model and draws, used on the rollout's event loop."""

    def __init__(self, model: Model, thread: RolloutThread, stack: AsyncExitStack) -> None:
        """`stack` ends what the rollout opens."""
        self.model = model
        self.thread = thread
        self.ledger = DrawLedger(model.tokenizer)
        self._stack = stack
        self._served: HttpModel | None = None
        self._read = 0

    async def chat(self, messages: Any, arguments: Mapping[str, Any]) -> list[TrinityExperience]:
        """Returns `n` answers to a conversation; a last message of the assistant is the beginning of each answer."""
        count, sampling = _settings(self.model.sampling, arguments)
        spoken = _messages(messages)
        prefix = ""
        if spoken[-1].role == "assistant":
            prefix = spoken[-1].content
            spoken = spoken[:-1]
        responses = await _together(count, lambda: self.model.chat(spoken, sampling=sampling, reply_prefix=prefix))
        self.ledger.add_chat(spoken, prefix, responses)
        return self.ledger.add(responses)

    async def generate(self, prompts: Any, arguments: Mapping[str, Any]) -> list[TrinityExperience]:
        """Returns `n` answers to each bare text."""
        texts = [prompts] if isinstance(prompts, str) else list(prompts)
        count, sampling = _settings(self.model.sampling, arguments)
        experiences: list[TrinityExperience] = []
        for text in texts:
            experiences += self.ledger.add(
                await _together(count, lambda text=text: self.model.complete(text, sampling=sampling))  # type: ignore[misc]
            )
        return experiences

    async def conversation(self, messages: Any) -> TrinityExperience:
        """Returns a conversation as an experience of its drawn answers."""
        self.read_served()
        return self.ledger.conversation(_messages(messages))

    async def prompt_tokens(self, messages: Any) -> int:
        """Returns the number of tokens of a conversation's prompt."""
        return len(self.model.chat_prompt(_messages(messages)))

    async def address(self) -> tuple[str, str]:
        """Returns base URL and key of the model over HTTP, served from the first call on until the rollout's end."""
        if self._served is None:
            self._served = await self._stack.enter_async_context(self.model.served())
        return self._served.base_url, self._served.api_key

    def read_served(self) -> list[TrinityExperience]:
        """Records the answers over HTTP since the last call, and returns them as experiences."""
        if self._served is None:
            return []
        answers = list(self._served.answers)
        fresh = answers[self._read :]
        self._read = len(answers)
        return self.ledger.add(fresh)


class TrinityModel:
    """A class's model; an instance used for several rollouts is bound to each of them in turn.

    Blocking methods are for the thread of the class; the others may be awaited there.
    """

    enable_history: Final = True

    def __init__(self) -> None:
        self._rollout: ModelOfRollout | None = None
        self._client: Any = None
        self._async_client: Any = None
        self.history: list[TrinityExperience] = []

    def bind(self, rollout: ModelOfRollout) -> None:
        """Uses a rollout's model from now on, with an empty history."""
        self._rollout = rollout
        self.history = []
        for client in (self._client, self._async_client):
            if client is not None:
                client.base_url, client.api_key = self._wait(rollout.address())

    def chat(self, messages: Any, **arguments: Any) -> list[TrinityExperience]:
        """Returns `n` answers to a conversation."""
        return self._noted(self._wait(self._now.chat(messages, arguments)))

    async def chat_async(self, messages: Any, **arguments: Any) -> list[TrinityExperience]:
        """Returns `n` answers to a conversation."""
        return self._noted(await self._now.thread.here(self._now.chat(messages, arguments)))

    def generate(self, prompts: Any, **arguments: Any) -> list[TrinityExperience]:
        """Returns `n` answers to each of several bare texts."""
        return self._noted(self._wait(self._now.generate(prompts, arguments)))

    async def generate_async(self, prompts: Any, **arguments: Any) -> list[TrinityExperience]:
        """Returns `n` answers to each of several bare texts."""
        return self._noted(await self._now.thread.here(self._now.generate(prompts, arguments)))

    def convert_messages_to_experience(
        self, messages: Any, tools: Any = None, temperature: float | None = None
    ) -> TrinityExperience:
        """Returns a conversation as one experience, with the ids drawn for each answer."""
        return self._wait(self._now.conversation(messages))

    async def convert_messages_to_experience_async(
        self, messages: Any, tools: Any = None, temperature: float | None = None
    ) -> TrinityExperience:
        """Returns a conversation as one experience, with the ids drawn for each answer."""
        return await self._now.thread.here(self._now.conversation(messages))

    def logprobs(self, tokens: Any, temperature: float | None = None) -> torch.Tensor:
        """Raises RolloutError: rollout engines score no tokens of others."""
        raise _unsupported("logprobs", "use the logprobs of chat; a teacher is algorithm_type: on_policy_distill")

    async def logprobs_async(self, tokens: Any, temperature: float | None = None) -> torch.Tensor:
        """Raises RolloutError: rollout engines score no tokens of others."""
        return self.logprobs(tokens, temperature)

    def chat_mm(self, *_: Any, **__: Any) -> list[TrinityExperience]:
        """Raises RolloutError: models take text alone."""
        raise _unsupported("chat_mm", "rollout engines take text alone")

    generate_mm = chat_mm

    def get_openai_client(self) -> Any:
        """Returns a client of OpenAI's API for this rollout; its answers are recorded."""
        if self._client is None:
            base_url, api_key = self._wait(self._now.address())
            self._client = open_client(base_url, api_key, self.model_path)
        return self._client

    def get_openai_async_client(self) -> Any:
        """Returns an asynchronous client of OpenAI's API for this rollout; its answers are recorded."""
        if self._async_client is None:
            base_url, api_key = self._wait(self._now.address())
            self._async_client = open_client(base_url, api_key, self.model_path, blocking=False)
        return self._async_client

    def extract_experience_from_history(self, clear_history: bool = True) -> list[TrinityExperience]:
        """Returns the answers since the last extraction, those over HTTP last."""
        self.history += self._now.read_served()
        experiences = list(self.history)
        if clear_history:
            self.history = []
        return experiences

    async def get_message_token_len(self, messages: Any) -> int:
        """Returns the number of tokens of a conversation's prompt."""
        return await self._now.thread.here(self._now.prompt_tokens(messages))

    @property
    def model_version(self) -> int:
        """Version of the weights in use."""
        return self._now.model.version[0]

    @property
    async def model_version_async(self) -> int:
        """Version of the weights in use."""
        return self.model_version

    @property
    def model_path(self) -> str:
        """Folder of the model."""
        return self._now.model.spec.path

    @property
    async def model_path_async(self) -> str:
        """Folder of the model."""
        return self.model_path

    @property
    def model_name(self) -> str:
        """Name of the model's folder."""
        return self._now.model.name

    @property
    def _now(self) -> ModelOfRollout:
        assert self._rollout is not None, "bound to a rollout before its class is made"
        return self._rollout

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self._now.thread.wait(work)

    def _noted(self, experiences: list[TrinityExperience]) -> list[TrinityExperience]:
        self.history += experiences
        return experiences


async def _together(count: int, ask: Callable[[], Coroutine[Any, Any, Response]]) -> Sequence[Response]:
    """Returns the answers to `count` equal requests, numbered in order whatever their ends."""
    if count == 1:
        return [await ask()]
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(ask()) for _ in range(count)]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in running]


def _messages(messages: Any) -> tuple[Message, ...]:
    try:
        return parse_messages(list(messages))
    except (TypeError, ValueError) as error:
        raise RolloutError(f"the messages {error}", field="messages", fix="pass a list of role and content") from None


def _settings(sampling: SamplingSpec, arguments: Mapping[str, Any]) -> tuple[int, SamplingSpec]:
    """Returns the number of answers and the sampling settings of a call. Raises RolloutError for an unknown name."""
    changes: dict[str, Any] = {}
    count = 1
    for name, setting in arguments.items():
        if setting is None or name in _RECORDED:
            continue
        if name == "n":
            count = int(setting)
        elif name == "stop":
            changes["stop"] = (setting,) if isinstance(setting, str) else tuple(setting)
        elif name in _SETTINGS:
            changes[name] = setting
        else:
            raise RolloutError(
                f"chat and generate take no {name!r}", field=name, fix=f"they take n, stop, {', '.join(_SETTINGS)}"
            )
    if count < 1:
        raise RolloutError(f"n is {count}", field="n", fix="request at least one answer")
    return count, msgspec.structs.replace(sampling, **changes)


def _unsupported(method: str, fix: str) -> RolloutError:
    return RolloutError(f"rftd has no {method} of a model", field=f"ModelWrapper.{method}", fix=fix)

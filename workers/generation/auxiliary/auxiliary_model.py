"""`AuxiliaryModel`: what workflows and rewards see of a model beside the one that is trained."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

import msgspec

from rftd.ops.redaction import Secret
from rftd.streams.spec.spec import SamplingSpec
from rftd.workers.datasets.message import Message


class AuxiliaryAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer of an auxiliary model."""

    text: str
    finish: str
    """`stop` or `length`, or what else a service calls it."""
    prompt_tokens: int = 0
    """As the engine or the service counts them; 0 where a service does not say."""
    tokens: int = 0


@dataclass(frozen=True)
class ModelAddress:
    """Where a client of OpenAI's API finds a model."""

    base_url: str
    """With its `/v1`."""
    secret: Secret
    model: str
    """What a call names it."""

    @property
    def api_key(self) -> str:
        """The key; a text that is no secret where the service wants none."""
        return self.secret.reveal()


class AuxiliaryModel(Protocol):
    """A model beside the one that is trained, as one rollout sees it.

    Whatever it answers is recorded with the rollout. Its methods may be called from any event loop of the process.
    """

    @property
    def name(self) -> str:
        """Its name in the experiment file."""
        ...

    async def chat(self, messages: Sequence[Message], *, sampling: SamplingSpec | None = None) -> AuxiliaryAnswer:
        """The assistant's next message; `sampling` None: as the experiment file says.

        Raises RolloutError, which fails the attempt, if the engine failed, if the service refuses, or if it was busy
        for longer than a rollout waits.
        """
        ...

    def served(self) -> AbstractAsyncContextManager[ModelAddress]:
        """Base URL and key for a program that knows OpenAI's API, while the block runs.

        An engine's answers are recorded; those of a service are between it and the program.
        """
        ...

"""`AuxiliaryModel`: a model other than the trained one, as used by workflows and rewards."""

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
    """An answer of an auxiliary model, with its token counts."""

    text: str
    """Text of the answer."""
    finish: str
    """`stop`, `length`, or another reason in a service's own terms."""
    prompt_tokens: int = 0
    """Prompt tokens as counted by the engine or the service; 0 where a service reports none."""
    tokens: int = 0
    """Answer tokens as counted by the engine or the service; 0 where a service reports none."""


@dataclass(frozen=True)
class ModelAddress:
    """Address, key and name of a model for clients of OpenAI's API."""

    base_url: str
    """URL including the path `/v1`."""
    secret: Secret
    """Key, hidden in representations."""
    model: str
    """Value of a request's field `model`."""

    @property
    def api_key(self) -> str:
        """Bearer key; a public placeholder where the service requires none."""
        return self.secret.reveal()


class AuxiliaryModel(Protocol):
    """A model other than the trained one, for use in one rollout; its answers are recorded with the rollout.

    The methods may be called from any event loop of the process.
    """

    @property
    def name(self) -> str:
        """Name of the model in the experiment file."""
        ...

    async def chat(self, messages: Sequence[Message], *, sampling: SamplingSpec | None = None) -> AuxiliaryAnswer:
        """Returns the assistant's next message; `sampling` defaults to the settings in the experiment file.

        Raises RolloutError, failing the attempt, if the engine failed, if the service refuses, or if the service was
        busy for longer than a rollout waits.
        """
        ...

    def served(self) -> AbstractAsyncContextManager[ModelAddress]:
        """A context with a base URL and key for a program with a client of OpenAI's API.

        An engine's answers are recorded; a service's answers pass directly between the service and the program,
        unrecorded.
        """
        ...

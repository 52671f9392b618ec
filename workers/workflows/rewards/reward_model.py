"""The score of a reward model: a folder that transformers opens with `AutoModelForSequenceClassification`."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

import msgspec

from rftd.ops.extras import TORCH, check_extra
from rftd.workers.datasets.task import Task
from rftd.workers.models.model_type import check_scoring_model
from rftd.workers.workflows.rewards.line_process import LineProcess
from rftd.workers.workflows.rewards.reward import RewardResult

BATCH: Final = 16
_PROCESS: Final = "rftd.workers.workflows.rewards.reward_model_process"


class RewardModel:
    """Scores the conversation that ends with the response.

    The model lies in a process of its own; answers that wait while it computes are scored as one batch, of `batch_size`
    at most.
    """

    blocks: ClassVar[bool] = True

    def __init__(
        self,
        *,
        path: str,
        device: Annotated[str, msgspec.Meta(pattern=r"^(cpu|cuda(:\d+)?)$")] = "cpu",
        batch_size: Annotated[int, msgspec.Meta(ge=1)] = BATCH,
    ) -> None:
        check_extra(TORCH, "the reward reward_model")
        self._model = {"path": path, "device": device}
        self._batch_size = batch_size
        self._process = LineProcess(_PROCESS)
        self._asking = threading.Lock()
        self._waiting_lock = threading.Lock()
        self._waiting: list[_Scoring] = []

    def start_with(self, environ: Mapping[str, str]) -> None:
        self._process.environ = environ

    @staticmethod
    def check_arguments(*, path: str, **_: object) -> None:
        """Raises DataError if `path` is no folder that transformers opens as a model with one score."""
        check_scoring_model(Path(path), field="path")

    def score(self, response: str, truth: str, task: Task) -> RewardResult:
        """`reward_model`: the model's one output. Raises RuntimeError, in the process's words, if it gives none."""
        messages = [message.as_dict() for message in task.messages]
        if task.system_prompt and task.messages[0].role != "system":
            messages.insert(0, {"role": "system", "content": task.system_prompt})
        asked = _Scoring([*messages, {"role": "assistant", "content": response}])
        with self._waiting_lock:
            self._waiting.append(asked)
        while asked.answer is None:
            # Whoever gets the turn asks for all that wait; those who were asked for find their answers.
            with self._asking:
                if asked.answer is None:
                    self._ask()
        if isinstance(asked.answer, str):
            raise RuntimeError(asked.answer)
        return RewardResult.of(reward_model=asked.answer)

    def _ask(self) -> None:
        with self._waiting_lock:
            batch = self._waiting[: self._batch_size]
            del self._waiting[: self._batch_size]
        given = self._given(batch)
        if "error" in given and len(batch) > 1:
            # What one of them has wrong is not the others' failure.
            for each in batch:
                alone = self._given([each])
                each.answer = alone["error"] if "error" in alone else alone["scores"][0]
            return
        answers = [given["error"]] if "error" in given else given["scores"]
        for each, answer in zip(batch, answers, strict=True):
            each.answer = answer

    def _given(self, batch: list[_Scoring]) -> dict[str, Any]:
        try:
            given: dict[str, Any] = self._process.ask(
                {**self._model, "conversations": [each.conversation for each in batch]}
            )
        except Exception as error:
            given = {"error": str(error)}
        return given


class _Scoring:
    """A conversation to score, and the score or what went wrong once there is one."""

    def __init__(self, conversation: list[dict[str, Any]]) -> None:
        self.conversation = conversation
        self.answer: float | str | None = None

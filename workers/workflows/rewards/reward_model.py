"""The score of a reward model in a folder for transformers' `AutoModelForSequenceClassification`."""

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
"""Default number of conversations scored at once."""
_PROCESS: Final = "rftd.workers.workflows.rewards.reward_model_process"
"""Module of the process."""


class RewardModel:
    """Scores the conversation ending with the response.

    The model is in a separate process; responses that wait while it computes are scored as one batch of at most
    `batch_size`.
    """

    blocks: ClassVar[bool] = True
    """True: scoring runs on a thread."""

    def __init__(
        self,
        *,
        path: str,
        device: Annotated[str, msgspec.Meta(pattern=r"^(cpu|cuda(:\d+)?)$")] = "cpu",
        batch_size: Annotated[int, msgspec.Meta(ge=1)] = BATCH,
    ) -> None:
        """`batch_size` is the maximum number of conversations scored at once."""
        check_extra(TORCH, "the reward reward_model")
        self._model = {"path": path, "device": device}
        """Folder and device of the model."""
        self._batch_size = batch_size
        self._process = LineProcess(_PROCESS)
        """The process with the model."""
        self._process_lock = threading.Lock()
        """Held while a batch is scored."""
        self._waiting_lock = threading.Lock()
        """Held while the waiting conversations change."""
        self._waiting: list[_PendingScore] = []
        """Conversations waiting for a batch."""

    def start_with(self, environ: Mapping[str, str]) -> None:
        """Sets the environment of the model's process; see `ProcessReward.start_with`."""
        self._process.environ = environ

    @staticmethod
    def check_arguments(*, path: str, **_: object) -> None:
        """Raises DataError unless `path` is a folder with a transformers model of one score."""
        check_scoring_model(Path(path), field="path")

    def score(self, response: str, truth: str, task: Task) -> RewardResult:
        """Returns `reward_model`: the model's one output. Raises RuntimeError, in the process's words, without one."""
        messages = [message.as_dict() for message in task.messages]
        if task.system_prompt and task.messages[0].role != "system":
            messages.insert(0, {"role": "system", "content": task.system_prompt})
        scoring = _PendingScore([*messages, {"role": "assistant", "content": response}])
        with self._waiting_lock:
            self._waiting.append(scoring)
        while scoring.answer is None:
            # The thread with the lock scores all waiting responses; the other threads find their answers.
            with self._process_lock:
                if scoring.answer is None:
                    self._score_batch()
        if isinstance(scoring.answer, str):
            raise RuntimeError(scoring.answer)
        return RewardResult.of(reward_model=scoring.answer)

    def _score_batch(self) -> None:
        """Scores the next batch; after an error, each conversation alone."""
        with self._waiting_lock:
            batch = self._waiting[: self._batch_size]
            del self._waiting[: self._batch_size]
        reply = self._ask_process(batch)
        if "error" in reply and len(batch) > 1:
            # A malformed conversation must not fail the others of its batch.
            for scoring in batch:
                separate_reply = self._ask_process([scoring])
                scoring.answer = separate_reply["error"] if "error" in separate_reply else separate_reply["scores"][0]
            return
        answers = [reply["error"]] if "error" in reply else reply["scores"]
        for scoring, answer in zip(batch, answers, strict=True):
            scoring.answer = answer

    def _ask_process(self, batch: list[_PendingScore]) -> dict[str, Any]:
        """Returns the process's reply: `scores`, or `error`."""
        try:
            reply: dict[str, Any] = self._process.ask(
                {**self._model, "conversations": [scoring.conversation for scoring in batch]}
            )
        except Exception as error:
            reply = {"error": str(error)}
        return reply


class _PendingScore:
    """A conversation to score, with the score or the error once known."""

    def __init__(self, conversation: list[dict[str, Any]]) -> None:
        """`conversation` ends with the response."""
        self.conversation = conversation
        self.answer: float | str | None = None
        """The score, or the error's text; None before."""

"""1 if math-verify accepts the answer; for MATH-like datasets, whose answers need a computer algebra system."""

from __future__ import annotations

import signal
import threading
from collections.abc import Mapping
from typing import Annotated, ClassVar, Final

import msgspec

from rftd.workers.datasets.task import Task
from rftd.workers.workflows.rewards.answer import answer_of, finished_answer_of, truth_of, visible
from rftd.workers.workflows.rewards.line_process import LineProcess, ProcessEnded
from rftd.workers.workflows.rewards.reward import RewardResult, RolloutView, was_cut
from rftd.workers.workflows.rewards.words import closing

ANSWER_CHARS: Final = 1000
"""Maximum characters of answers and truths; longer ones are not judged."""
LONGEST_S: Final = 60
"""Maximum seconds for one answer."""


class MathVerifyReward:
    """Passes the marked answer, else the closing words, to math-verify in a separate process, one at a time.

    An answer that takes longer than `timeout_s` seconds of processor time, or is longer than 1,000 characters, counts
    as wrong.
    """

    blocks: ClassVar[bool] = True
    """True: scoring runs on a thread."""

    def __init__(self, *, timeout_s: Annotated[float, msgspec.Meta(gt=0, le=LONGEST_S)] = 5.0) -> None:
        """`timeout_s` is the maximum processor time for one answer, in seconds."""
        self._judge = _JudgeProcess(timeout_s)
        """The judging process."""

    def start_with(self, environ: Mapping[str, str]) -> None:
        """Sets the environment of the judging process; see `ProcessReward.start_with`."""
        self._judge.process.environ = environ

    def score(self, response: str, truth: str, task: Task, rollout: RolloutView | None = None) -> RewardResult:
        """Returns `accuracy`: 0 or 1, and the remark `judge_gave_up`: 1 if the answer was too long or took too long."""
        response = visible(response)
        cut = was_cut(rollout)
        marked = finished_answer_of(response) if cut else answer_of(response)
        if cut and marked is None:  # the last words of a cut response may be half an answer
            return RewardResult(value=0.0, parts={"accuracy": 0.0, "judge_gave_up": 0.0})
        answer = closing(response) if marked is None else _boxed(marked)
        gold = _boxed(truth_of(visible(truth)))
        accepted = None if max(len(answer), len(gold)) > ANSWER_CHARS else self._judge.accepts(gold, answer)
        accuracy = float(accepted is True)
        parts = {"accuracy": accuracy, "judge_gave_up": float(accepted is None)}
        return RewardResult(value=accuracy, parts=parts, extracted=answer if marked is None else marked)


def _boxed(text: str) -> str:
    """Returns a text in a box."""
    return f"\\boxed{{{text}}}"


class _JudgeProcess:
    """The judging process, replaced after its end."""

    def __init__(self, seconds: float) -> None:
        """`seconds` is the maximum processor time for one answer, in seconds."""
        self._seconds = seconds
        # Two calls of a reward may run at once, on two threads.
        self._lock = threading.Lock()
        """Held during a request."""
        self.process = LineProcess("rftd.workers.workflows.rewards.math_verify_judge")
        """Process that answers one request at a time, started at the first one."""

    def accepts(self, truth: str, answer: str) -> bool | None:
        """True if math-verify accepts the answer; None if it took too long. Raises ProcessEnded for another exit."""
        try:
            with self._lock:
                return bool(self.process.ask([truth, answer, self._seconds]))
        except ProcessEnded as ended:
            if ended.status == -signal.SIGPROF:
                return None
            raise

"""`bounded`: a limit on the steps of a chat template, because a template is a program from an unknown author."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, TypeAlias

from rftd.ops import limits
from rftd.ops.errors import DataError

_TEMPLATES: Final = "<template>"
"""File name given by jinja2 to the code of a template without a file."""
_STEPS_BETWEEN_READINGS: Final = 64
"""Steps between two readings of the clock."""
_Trace: TypeAlias = "Callable[[FrameType, str, Any], _Trace | None]"
"""A trace function of the interpreter."""


@contextmanager
def bounded(steps: int = limits.TEMPLATE_STEPS, processor_s: float = limits.TEMPLATE_S) -> Iterator[None]:
    """A context limiting chat templates rendered in it, on this thread, to `steps` steps and `processor_s` processor
    seconds.

    A step is a line of a template's compiled code: each turn of a loop takes at least one. Raises DataError out of the
    template, with the exceeded limit.
    """
    # By a trace, because transformers makes the environment of its templates itself and exposes it nowhere; jinja2
    # bounds only the length of a range.
    budget = _Budget(steps, processor_s)
    before = sys.gettrace()
    sys.settrace(budget.entered)
    try:
        yield
    finally:
        sys.settrace(before)


class _Budget:
    """Remaining steps and processor time of the templates rendered in one context."""

    def __init__(self, steps: int, processor_s: float) -> None:
        """Allows `steps` steps and `processor_s` seconds of this thread's processor time."""
        self._steps = steps
        self._steps_left = steps
        """Remaining steps."""
        self._processor_s = processor_s
        self._until_s = time.thread_time() + processor_s
        """Processor time of the thread at which the budget ends."""

    def entered(self, frame: FrameType, _event: str, _argument: Any) -> _Trace | None:
        """Trace function of the interpreter: follows the code of templates, and ignores other code."""
        return self._count_step if frame.f_code.co_filename == _TEMPLATES else None

    def _count_step(self, _frame: FrameType, _event: str, _argument: Any) -> _Trace:
        """Counts one step. Raises DataError once steps or time are used up."""
        self._steps_left -= 1
        if self._steps_left < 0:
            raise DataError(f"it takes more than {self._steps} steps", fix="write a template without such loops")
        if self._steps_left % _STEPS_BETWEEN_READINGS == 0 and time.thread_time() > self._until_s:
            raise DataError(f"it takes more than {self._processor_s:g} s", fix="write a template without such loops")
        return self._count_step

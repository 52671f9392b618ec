"""`bounded`: a chat template may run for so many steps, and no longer: it is a program of whoever wrote the file."""

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
"""The file name that jinja2 gives to the code of a template that lies in no file."""
_LOOK: Final = 64
"""Steps between two looks at the clock."""
_Trace: TypeAlias = "Callable[[FrameType, str, Any], _Trace | None]"


@contextmanager
def bounded(steps: int = limits.TEMPLATE_STEPS, processor_s: float = limits.TEMPLATE_S) -> Iterator[None]:
    """Lets templates that are rendered in this block, on this thread, do so many steps in so much processor time.

    A step is a line of the code that a template is compiled to: each turn of a loop takes at least one. Raises
    DataError out of the template.
    """
    # A trace, for transformers makes the environment of its templates itself and hands it to nobody; jinja2 has no
    # bound of its own but for the length of one range.
    budget = _Budget(steps, processor_s)
    before = sys.gettrace()
    sys.settrace(budget.entered)
    try:
        yield
    finally:
        sys.settrace(before)


class _Budget:
    def __init__(self, steps: int, processor_s: float) -> None:
        self._steps = steps
        self._left = steps
        self._processor_s = processor_s
        self._until_s = time.thread_time() + processor_s

    def entered(self, frame: FrameType, _event: str, _argument: Any) -> _Trace | None:
        """Follows the code of templates, and no other."""
        return self._stepped if frame.f_code.co_filename == _TEMPLATES else None

    def _stepped(self, _frame: FrameType, _event: str, _argument: Any) -> _Trace:
        self._left -= 1
        if self._left < 0:
            raise DataError(f"it takes more than {self._steps} steps", fix="write a template without such loops")
        if self._left % _LOOK == 0 and time.thread_time() > self._until_s:
            raise DataError(f"it takes more than {self._processor_s:g} s", fix="write a template without such loops")
        return self._stepped

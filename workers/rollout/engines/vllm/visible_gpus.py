"""`visible_gpus`: the GPUs of its process that an engine sees while it starts, for an explorer may have several."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from rftd.ops.errors import WorkError
from rftd.workers.devices.discovery import VISIBLE


@contextmanager
def visible_gpus(numbers: range) -> Iterator[None]:
    """Processes that are started in the block see the GPUs of this process with these numbers; none: all of them.

    The environment is the whole process's, so no two blocks may run at once. Raises WorkError if this process was
    given fewer GPUs.
    """
    if not numbers:
        yield
        return
    before = os.environ.get(VISIBLE)
    # A process that nobody gave any GPUs sees all, which the driver numbers from 0.
    words = [str(number) for number in range(numbers.stop)] if before is None else before.split(",")
    if len(words) < numbers.stop:
        raise WorkError(
            f"the engine is to compute on GPU {numbers.stop} of its explorer, and {VISIBLE} is {before!r}",
            fix="give the explorer as many GPUs as its engines have together, or let the daemon start it",
        )
    os.environ[VISIBLE] = ",".join(words[numbers.start : numbers.stop])
    try:
        yield
    finally:
        if before is None:
            del os.environ[VISIBLE]
        else:
            os.environ[VISIBLE] = before

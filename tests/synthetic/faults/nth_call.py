"""A child process that dies, or whose disk is full, at the n-th call that changes the file system."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

CALLS = ("open", "mkdir", "rename", "replace", "unlink", "rmdir", "fsync")
FULL_STATUS = 3
TOLERATED_STATUS = 4
"""The call failed and the work was done nevertheless, for example where a leftover could not be removed."""
MOST_CALLS = 500


def strike_each(prepare: Callable[[], None], work: Callable[[], None], check: Callable[[int], None], how: str) -> int:
    """The number of calls, each struck once: `prepare`, `work` in a child that is struck at call n, `check(n)`.

    `how` is `kill` (SIGKILL before the call) or `full` (the call says that the disk is full).
    """
    for number in range(1, MOST_CALLS):
        prepare()
        status = _struck(work, number, how)
        if status == 0:
            return number - 1
        expected = (-signal.SIGKILL,) if how == "kill" else (FULL_STATUS, TOLERATED_STATUS)
        assert status in expected, f"call {number}: status {status}"
        check(number)
    raise AssertionError("the work never ends")


def _struck(work: Callable[[], None], number: int, how: str) -> int:
    pid = os.fork()
    if pid == 0:
        left = _arm(number, how)
        status = 1
        try:
            work()
            status = 0 if left() > 0 else TOLERATED_STATUS
        except OSError as error:
            status = FULL_STATUS if error.errno == errno.ENOSPC else 1
        finally:
            sys.stdout.flush()
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _arm(number: int, how: str) -> Callable[[], int]:
    """Says how many calls are left before the strike."""
    left = number

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def count(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0 and how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if left == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return call(*arguments, **named)

        return count

    for name in CALLS:
        setattr(os, name, counted(getattr(os, name)))
    setattr(io, "open", counted(io.open))  # noqa: B010
    return lambda: left

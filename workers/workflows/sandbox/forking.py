"""The server of wardens: a process started once by an explorer, and forked for every warden.

A fork costs milliseconds, and a start of Python with its imports many times as much. Part of the warden's program:
imports its neighbours and the standard library alone.
"""

from __future__ import annotations

# With all modules needed by most warm commands, so that a fork imports none of them again.
import asyncio  # noqa: F401
import dataclasses  # noqa: F401
import gc
import inspect  # noqa: F401
import os
import select
import signal
import site
import socket
from contextlib import suppress

import rftd.workers.workflows.sandbox.warm_text  # noqa: F401
from rftd.workers.workflows.sandbox.warden import main

# As mypy reads it; the module typing takes longer to import than everything else here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

DESCRIPTORS = 3
"""Descriptors of a message: input and output of a warden, and the lock of the run's folder."""


def serve(explorer: int) -> None:
    """Forks a warden for each message on the socket at descriptor 0, until the explorer closes the socket or ends."""
    site.main()
    gc.freeze()
    # Children are nobody's to wait for: the report of a warden is the end of its output.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    poll = select.poll()
    poll.register(0, select.POLLIN)
    # A child forked by the explorer without exec would keep the socket open: the explorer's death counts as well.
    poll.register(os.pidfd_open(explorer), select.POLLIN)
    with socket.socket(fileno=0) as channel:
        while all(descriptor == 0 for descriptor, _ in poll.poll()):
            message, descriptors, _, _ = socket.recv_fds(channel, 1, DESCRIPTORS)
            if not message:
                return
            if len(descriptors) == DESCRIPTORS and os.fork() == 0:
                become_warden(descriptors)
            for descriptor in descriptors:
                os.close(descriptor)


def become_warden(descriptors: list[int]) -> NoReturn:
    """Runs a warden with this input and output; the lock of its folder stays open until its end."""
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        received, sent, lock = (os.dup(descriptor) for descriptor in descriptors)
        lowest = max(received, sent, lock) + 1
        for number, descriptor in ((1, sent), (0, received)):
            os.dup2(descriptor, number)
        for descriptor in range(3, lowest):
            if descriptor != lock:
                with suppress(OSError):
                    os.close(descriptor)
        main()
        code = 0
    finally:
        os._exit(code)

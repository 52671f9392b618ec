"""`rftd` and `python -P -m rftd.daemon`: the command line as a process."""

import atexit
import gc
import io
import os
import signal
import sys
from typing import Final, NoReturn

from rftd.daemon.cli.cli import main

_EXIT_TIMEOUT_S: Final = 3
"""Seconds for the registered exit functions, before an alarm ends the process."""


def run() -> NoReturn:
    """Runs this process's command line, and ends the process with its exit status."""
    # Reward curves and names may contain characters missing from the terminal's encoding.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    status = main()
    if sys.argv[1:2] == ["worker"]:
        _end_at_once(status)
    # Without freezing, the interpreter would search all imported objects for cycles once more before exit, to no
    # purpose.
    gc.freeze()
    sys.exit(status)


def _end_at_once(status: int) -> NoReturn:
    """Ends a worker's process without the interpreter's own shutdown.

    The worker has closed everything by then. Leftovers of engine libraries may wait for killed processes, and the
    daemon would have to kill the worker in turn.
    """
    # Registered exit functions may wait, too: then the alarm ends the process, no matter who holds the interpreter's
    # lock.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_EXIT_TIMEOUT_S)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    run()

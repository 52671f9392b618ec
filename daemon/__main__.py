"""`rftd` and `python -P -m rftd.daemon`: the command line as a process of its own."""

import atexit
import gc
import io
import os
import signal
import sys
from typing import Final, NoReturn

from rftd.daemon.cli.cli import main

_PATIENCE_S: Final = 3


def run() -> NoReturn:
    """Runs this process's command line, and ends the process with its exit status."""
    # A curve, or a name, may have characters that this terminal's encoding lacks.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    status = main()
    if sys.argv[1:2] == ["worker"]:
        _end_at_once(status)
    # The interpreter would look for cycles in all that was imported once more before it ends, for nothing.
    gc.freeze()
    sys.exit(status)


def _end_at_once(status: int) -> NoReturn:
    """Ends this process without the interpreter's own end.

    A worker has closed all that it had by then. What libraries of engines left behind may wait for processes that were
    killed, and the daemon would have to kill the worker in its turn.
    """
    # What they have registered may wait, too: then the alarm ends the process, whoever holds the interpreter's lock.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_PATIENCE_S)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    run()

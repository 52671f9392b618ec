"""`WardenServer`: starts wardens as forks of one process of this explorer."""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

from rftd.ops.errors import RolloutError

_ABOVE_RFTD: Final = Path(__file__).parents[4]
"""The folder with the package rftd, for the import of the warden."""
# Without running the packages' own modules, and what they import.
_START: Final = """
import sys
for depth in range(4, len(sys.argv) + 1):
    name = ".".join(sys.argv[3:depth])
    package = sys.modules[name] = type(sys)(name)
    package.__path__ = ["/".join([sys.argv[2], *sys.argv[3:depth]])]
from rftd.workers.workflows.sandbox.forking import serve
serve(int(sys.argv[1]))
"""


class WardenServer:
    """The process forking wardens: started when first needed, and again after its death."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channel: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._explorer = 0

    def start(self, descriptors: tuple[int, int, int]) -> None:
        """Starts a warden with this input, output and lock, all copied. Blocks. Raises RolloutError."""
        with self._lock:
            for _ in range(2):
                if self._channel is None or self._explorer != os.getpid():
                    self._open()
                assert self._channel is not None
                try:
                    socket.send_fds(self._channel, [b"w"], descriptors)
                    return
                except OSError:  # killed
                    self._close()
        raise RolloutError("the process that starts sandboxes ends at once", fix="look for a lack of memory")

    def _open(self) -> None:
        from rftd.workers.hosts.leftovers import MARK  # late, as psutil

        # The mark lets the daemon end a warden whose explorer died with it; the library path is that of this Python.
        names = (MARK, "LD_LIBRARY_PATH")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _START, str(os.getpid()), str(_ABOVE_RFTD), *__package__.split(".")],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in names if name in os.environ},
                start_new_session=True,
            )
        self._channel = ours
        self._explorer = os.getpid()
        atexit.register(self._close)

    def _close(self) -> None:
        if self._explorer != os.getpid():  # a fork of the explorer
            return
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


WARDENS: Final = WardenServer()
"""The server of this process, for all of its sandboxes."""

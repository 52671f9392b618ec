"""`VllmStarts`: the number of vLLM engines that the tests of this process have started, here or in a child's child."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Final

import psutil

MOST: Final = 5
"""Each start takes the better part of a minute: `make test-engines` has so many at most."""
_LOOK_S: Final = 1.0
_TITLE: Final = "VLLM::EngineCore"


class VllmStarts(threading.Thread):
    """Looks at the processes below this one until it is told to stop; no engine is gone between two looks."""

    def __init__(self) -> None:
        super().__init__(name="vllm-starts", daemon=True)
        self._enough = threading.Event()
        self._seen: set[psutil.Process] = set()

    def run(self) -> None:
        """Looks again and again."""
        while not self._enough.wait(_LOOK_S):
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    if process.cmdline()[:1] == [_TITLE]:
                        self._seen.add(process)

    def stop(self) -> int:
        """Ends it; returns the number of engines."""
        self._enough.set()
        self.join()
        return len(self._seen)

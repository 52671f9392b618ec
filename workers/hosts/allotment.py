"""`Allotment`: which GPUs the worker of each place has. Those that fewest others have come first.

Workers of one experiment share none, for its specification was held against what is there. Those of several that run
at once do where there are too few for all.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence

from rftd.ops.errors import WorkError
from rftd.workers.devices.host import Device


class Allotment:
    """The GPUs of every place of one launcher. Places are told by their marks; for use from several threads."""

    def __init__(self, lives: Callable[[str], bool]) -> None:
        """`lives` says whether the worker of a place has not ended."""
        self._lives = lives
        self._lock = threading.Lock()
        self._held: dict[str, tuple[str, ...]] = {}

    def note(self, place: str, visible: str) -> None:
        """Remembers the GPUs of a worker that an earlier daemon started, by its CUDA_VISIBLE_DEVICES."""
        with self._lock:
            self._held[place] = tuple(word for word in visible.split(",") if word)

    def give(self, place: str, count: int, gpus: Sequence[Device]) -> tuple[Device, ...]:
        """So many GPUs for the next worker of a place, its former ones if nobody else has them. Raises WorkError."""
        if count > len(gpus):
            raise WorkError(
                f"it needs {count} GPUs, and this machine has {len(gpus)}",
                fix="start the daemon where they are, or submit the experiment anew",
            )
        with self._lock:
            taken = Counter(
                word for other, held in self._held.items() if other != place and self._lives(other) for word in held
            )
            former = self._held.get(place, ())
            ranked = sorted(gpus, key=lambda gpu: (taken[gpu.visible], gpu.visible not in former, gpu.index))
            given = tuple(sorted(ranked[:count], key=lambda gpu: gpu.index))
            self._held[place] = tuple(gpu.visible for gpu in given)
        return given

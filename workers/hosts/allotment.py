"""`Allotment`: assigns GPUs to the worker of each slot; GPUs used by the fewest other workers come first.

Workers of one experiment share no GPU, because the specification was checked against the available GPUs. Workers of
several simultaneous experiments share GPUs if there are too few for all.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence

from rftd.ops.errors import WorkError
from rftd.workers.devices.host import Device


class Allotment:
    """The GPUs assigned to every slot of one launcher, keyed by slot mark; usable from several threads."""

    def __init__(self, lives: Callable[[str], bool]) -> None:
        """`lives(mark)` returns True while the worker of a slot runs."""
        self._lives = lives
        self._lock = threading.Lock()
        """Held while assignments change."""
        self._by_slot: dict[str, tuple[str, ...]] = {}
        """Indices of the GPUs assigned to each slot."""

    def note(self, slot: str, visible: str) -> None:
        """Records the GPUs of a worker started by an earlier daemon; `visible` is its CUDA_VISIBLE_DEVICES."""
        with self._lock:
            self._by_slot[slot] = tuple(word for word in visible.split(",") if word)

    def give(self, slot: str, count: int, gpus: Sequence[Device]) -> tuple[Device, ...]:
        """Assigns `count` of the machine's `gpus` to the next worker of a slot, and returns them by index. GPUs used by
        the fewest running workers come first, then the slot's former ones.

        Raises WorkError if the machine has fewer than `count` GPUs.
        """
        if count > len(gpus):
            raise WorkError(
                f"it needs {count} GPUs, and this machine has {len(gpus)}",
                fix="start the daemon where they are, or submit the experiment anew",
            )
        with self._lock:
            users = Counter(
                word
                for occupied_slot, visible_words in self._by_slot.items()
                if occupied_slot != slot and self._lives(occupied_slot)
                for word in visible_words
            )
            former = self._by_slot.get(slot, ())
            ranked = sorted(gpus, key=lambda gpu: (users[gpu.visible], gpu.visible not in former, gpu.index))
            assigned = tuple(sorted(ranked[:count], key=lambda gpu: gpu.index))
            self._by_slot[slot] = tuple(gpu.visible for gpu in assigned)
        return assigned

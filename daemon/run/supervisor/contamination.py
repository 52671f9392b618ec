"""`Contamination`: held-out rows also used for training, found at submission by the texts of their prompts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import xxhash

from rftd.ops.errors import DataError
from rftd.streams.spec.spec import ExperimentSpec, TasksetSpec
from rftd.streams.spec.stage_tasks import tasksets_of
from rftd.workers.datasets.task import make_task
from rftd.workers.datasets.taskset import Taskset

_MAX_HELD_OUT_ROWS: Final = 10_000
"""Maximum number of compared rows of a held-out taskset, spread evenly over a larger one."""
_TRAINED: Final = 50_000
"""Maximum number of compared rows of a training taskset or dataset, spread evenly over a larger one."""


class Contamination:
    """A comparison of held-out rows with training rows by digests of their prompts."""

    def __init__(self, spec: ExperimentSpec) -> None:
        """Prepares the comparison of all held-out tasksets in `spec` with all its training data."""
        self._held_out = [taskset for stage in spec.stages for taskset in stage.evals]
        """Held-out tasksets of all stages."""
        trained = [taskset for stage in spec.stages for taskset in (*tasksets_of(stage), stage.dataset)]
        self._trained = [taskset for taskset in trained if taskset is not None]
        """Tasksets and datasets trained on, of all stages."""
        self._rows: dict[bytes, list[tuple[str, int]]] = {}
        """Held-out rows by the digest of their prompt."""
        self._sizes: dict[str, int] = {}
        """Number of rows of each held-out taskset."""
        self._trained_rows: dict[bytes, tuple[str, int]] = {}
        """First training row of each prompt digest."""
        self._compared: list[TasksetSpec] = []
        """Tasksets already added to the comparison."""
        self._sampled = False
        """True if a taskset had more rows than were compared."""

    def look(self, spec: TasksetSpec, taskset: Taskset) -> None:
        """Adds the prompts of an open taskset to the comparison; reads rows, and so blocks."""
        if not self._held_out or not self._trained or spec in self._compared:
            return
        self._compared.append(spec)
        for digest, row in self._digests(taskset, _MAX_HELD_OUT_ROWS if spec in self._held_out else _TRAINED):
            if spec in self._held_out:
                self._rows.setdefault(digest, []).append((spec.name, row))
            if spec in self._trained:
                self._trained_rows.setdefault(digest, (spec.name, row))
        if spec in self._held_out:
            self._sizes[spec.name] = len(taskset)

    def warnings(self) -> Iterator[str]:
        """Yields one warning text for each held-out taskset with prompts that are also trained on."""
        both: dict[str, dict[int, tuple[str, int]]] = {}
        for digest, rows in self._rows.items():
            if digest in self._trained_rows:
                for name, row in rows:
                    both.setdefault(name, {})[row] = self._trained_rows[digest]
        for name, trained_at in both.items():
            row = min(trained_at)
            trained, number = trained_at[row]
            looked = ", of the compared rows" if self._sampled else ""
            yield (
                f"{len(trained_at)} of the {self._sizes[name]} rows of held-out {name!r} have the prompt of a row that "
                f"is trained on{looked}: row {row} is row {number} of {trained!r}; such scores may be memorized"
            )

    def _digests(self, taskset: Taskset, most: int) -> Iterator[tuple[bytes, int]]:
        """Yields the digest of each compared prompt with its row, for at most `most` evenly spread rows."""
        looks = min(most, len(taskset))
        self._sampled = self._sampled or looks < len(taskset)
        for number in range(looks):
            row = number * len(taskset) // looks
            try:
                task = make_task(taskset.row(row), spec=taskset.spec, row=row)
            except DataError:
                continue  # reported by the check of its training rows
            # Case and white space do not distinguish questions.
            text = "\n".join(f"{message.role}: {' '.join(message.content.split())}" for message in task.messages)
            yield xxhash.xxh3_128_digest(text.casefold().encode()), row

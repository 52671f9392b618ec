"""`Contamination`: held-out rows that are trained on as well, found at submission by the texts of their prompts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import xxhash

from rftd.ops.errors import DataError
from rftd.streams.spec.spec import ExperimentSpec, TasksetSpec
from rftd.streams.spec.stage_tasks import tasksets_of
from rftd.workers.datasets.task import make_task
from rftd.workers.datasets.taskset import Taskset

_HELD_OUT: Final = 10_000
"""Rows of a held-out taskset that are compared; of a larger one as many, spread over all of it."""
_TRAINED: Final = 50_000
"""Most training rows that held-out rows are compared with."""


class Contamination:
    """Prompts of the rows that were looked at, held-out ones and trained ones."""

    def __init__(self, spec: ExperimentSpec) -> None:
        self._held_out = [taskset for stage in spec.stages for taskset in stage.evals]
        trained = [taskset for stage in spec.stages for taskset in (*tasksets_of(stage), stage.dataset)]
        self._trained = [taskset for taskset in trained if taskset is not None]
        self._rows: dict[bytes, list[tuple[str, int]]] = {}
        """The held-out rows that have a prompt, by its digest."""
        self._sizes: dict[str, int] = {}
        """The rows of each held-out taskset."""
        self._seen: dict[bytes, tuple[str, int]] = {}
        """The first row to train on that has a prompt."""
        self._looked: list[TasksetSpec] = []
        self._sampled = False

    def look(self, spec: TasksetSpec, taskset: Taskset) -> None:
        """Takes in the prompts of a taskset that is open; blocks while it reads them."""
        if not self._held_out or not self._trained or spec in self._looked:
            return
        self._looked.append(spec)
        for digest, row in self._digests(taskset, _HELD_OUT if spec in self._held_out else _TRAINED):
            if spec in self._held_out:
                self._rows.setdefault(digest, []).append((spec.name, row))
            if spec in self._trained:
                self._seen.setdefault(digest, (spec.name, row))
        if spec in self._held_out:
            self._sizes[spec.name] = len(taskset)

    def warnings(self) -> Iterator[str]:
        """A text for each held-out taskset of which some rows are trained on."""
        both: dict[str, dict[int, tuple[str, int]]] = {}
        for digest, rows in self._rows.items():
            if digest in self._seen:
                for name, row in rows:
                    both.setdefault(name, {})[row] = self._seen[digest]
        for name, found in both.items():
            row = min(found)
            trained, number = found[row]
            looked = ", of those that were compared" if self._sampled else ""
            yield (
                f"{len(found)} of the {self._sizes[name]} rows of held-out {name!r} have the prompt of a row that is "
                f"trained on{looked}: row {row} is row {number} of {trained!r}; such scores may be learnt by heart"
            )

    def _digests(self, taskset: Taskset, most: int) -> Iterator[tuple[bytes, int]]:
        looks = min(most, len(taskset))
        self._sampled = self._sampled or looks < len(taskset)
        for number in range(looks):
            row = number * len(taskset) // looks
            try:
                task = make_task(taskset.row(row), spec=taskset.spec, row=row)
            except DataError:
                continue  # whoever trains on it says what is wrong with it
            # Case and white space make no other question.
            text = "\n".join(f"{message.role}: {' '.join(message.content.split())}" for message in task.messages)
            yield xxhash.xxh3_128_digest(text.casefold().encode()), row

"""`Weights`: published weight versions: announced, retired, lost, loaded by workers."""

from __future__ import annotations

from bisect import bisect_left, insort
from uuid import UUID

import msgspec

from rftd.streams.events import weights
from rftd.streams.folds.ranges import Versions
from rftd.streams.folds.spine import Spine
from rftd.streams.log.announcement import announcement_digest
from rftd.streams.log.envelope import Decoded, Head


class Weights(msgspec.Struct):
    """Announcements of weights; callers pass the spine to learn which of them count."""

    published: dict[tuple[int, int], weights.WeightsPublished] = {}
    """Announcements not retired, and that of the base model, by (version, generation)."""
    retired: Versions = msgspec.field(default_factory=Versions)
    """Retired versions, and versions never announced between two retired ones of a generation."""
    standing: list[tuple[int, int]] = []
    """Announced and not retired (version, generation), ascending; few in any run."""
    lost: set[int] = set()
    """Retired versions that rollouts still ask for; the next version serves instead."""
    activated: dict[UUID, tuple[int, int]] = {}
    """The newest version loaded by each worker."""
    answer: weights.WeightsAnswered | None = None
    """The answer to the newest answered request."""
    _announced: dict[tuple[int, int], set[UUID]] = {}
    """Ids of the announcements' events, so that a repeated older one does not replace a newer one."""
    _epoch: int = 0
    """Highest epoch of a trainer with announcements or retirements."""
    _retired_by_it: Versions = msgspec.field(default_factory=Versions)
    """Versions retired by the trainer of `_epoch`, which that trainer will not announce again."""

    def apply(self, decoded: Decoded) -> None:
        """Folds weights.published, weights.retired, weights.activated and weights.answered."""
        event = decoded.event
        match event:
            case weights.WeightsPublished():
                self._note_epoch(decoded.head.epoch)
                self._fold_publication(event, decoded.head)
            case weights.WeightsRetired():
                self._note_epoch(decoded.head.epoch)
                if decoded.head.epoch == self._epoch:
                    self._fold_retirement((event.version, event.generation))
                if event.lost:
                    self.lost.add(event.version)
            case weights.WeightsActivated():
                loaded = (event.version, event.generation)
                self.activated[event.worker] = max(loaded, self.activated.get(event.worker, loaded))
            case weights.WeightsAnswered():
                if self.answer is None or weights.order_of(event) > weights.order_of(self.answer):
                    self.answer = event
            case _:
                pass

    def _note_epoch(self, epoch: int) -> None:
        """Forgets the retirements of older trainers once a newer one writes."""
        if epoch > self._epoch:
            self._epoch = epoch
            self._retired_by_it = Versions()

    def _fold_publication(self, event: weights.WeightsPublished, head: Head) -> None:
        """Folds an announcement of weights, unless the announcement repeats an older one."""
        key = event.version, event.generation
        announcements = self._announced.get(key, ())
        if head.id in announcements:
            return
        if key in self.retired:
            if head.epoch < self._epoch or key in self._retired_by_it:
                return  # a repetition of an older one
            self.retired.of(event.generation).discard(event.version)
            insort(self.standing, key)
        elif key not in self.published:
            insort(self.standing, key)
        self.published[key] = event
        self._announced[key] = {head.id, *announcements}

    def _fold_retirement(self, key: tuple[int, int]) -> None:
        """Folds a retirement; lower versions never announced count as retired too."""
        if key in self.retired:
            return
        version, generation = key
        announced = key in self.published
        if announced:
            self.standing.remove(key)
        lower_versions = (
            [
                lower_version
                for lower_version, standing_generation in self.standing
                if standing_generation == generation and lower_version < version
            ]
            if announced
            else []
        )
        for retired in (self.retired.of(generation), self._retired_by_it.of(generation)):
            if announced:
                # A trainer announces versions in ascending order: a version between two announced versions never comes.
                boundaries = (
                    boundary for boundary in (retired.below(version), *lower_versions) if boundary is not None
                )
                retired.cover(max(boundaries, default=version - 1) + 1, version)
            retired.add(version)
        # The base model's announcement stays, as the checksum identifies the beginning of the run.
        if version:
            self.published.pop(key, None)
            self._announced.pop(key, None)

    def over(self, version: int, generation: int) -> bool:
        """True if the present trainer retired the version for good; only a successor would announce it again."""
        return (version, generation) in self._retired_by_it

    def answered(self, request: weights.WeightsRequested) -> bool:
        """True if the trainer has answered this request or a later one."""
        return self.answer is not None and weights.order_of(self.answer) >= weights.order_of(request)

    @property
    def newest_digest(self) -> bytes | None:
        """Digest of the newest announcement not retired; None without one."""
        return announcement_digest(self.published[self.standing[-1]]) if self.standing else None

    def counts(self, version: int, generation: int, spine: Spine) -> bool:
        """True if these weights are announced and not retired, and produced by a step on the spine."""
        event = self.published.get((version, generation))
        if event is None or (version, generation) in self.retired:
            return False
        return version == 0 or spine.made(version, generation, event.step_checksum)

    def newest(self, spine: Spine, *, at_most: int | None = None) -> weights.WeightsPublished | None:
        """Returns the newest counting announcement with a version up to `at_most`; of equal versions, the newest
        generation's.

        None without one.
        """
        for key in reversed(self.standing):
            if (at_most is None or key[0] <= at_most) and self.counts(*key, spine):
                return self.published[key]
        return None

    def of_version(self, version: int, spine: Spine) -> weights.WeightsPublished | None:
        """Returns the counting announcement of a version, of the newest generation; for a lost version, the next
        version's.
        """
        later = self.standing[bisect_left(self.standing, (version,)) :]
        counting = [key for key in later if self.counts(*key, spine)]
        if version in self.lost:
            version = min(counting, default=(version, 0))[0]
        best = max((key for key in counting if key[0] == version), default=None)
        return self.published[best] if best else None

    def base(self) -> weights.WeightsPublished | None:
        """Returns the first announcement of version 0, retired or not: its checksum identifies the base model."""
        keys = (key for key in self.published if key[0] == 0)
        first = min(keys, default=None)
        return self.published[first] if first else None

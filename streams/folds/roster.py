"""The workers of an experiment: who joined, in which slot, and who left."""

from __future__ import annotations

from uuid import UUID

import msgspec

from rftd.streams.codec import Decoded
from rftd.streams.events import worker


class Gone(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that left."""

    role: str
    slot: int
    code: str = ""
    """Of the error that ended it, if it said so itself."""
    reason: str = ""
    lost: bool = False
    """True if somebody else noticed."""


class Roster(msgspec.Struct):
    """Workers by id; one that stopped or was lost never comes back under the same id."""

    live: dict[UUID, worker.WorkerStarted] = {}
    gone: dict[UUID, Gone] = {}

    def apply(self, decoded: Decoded) -> None:
        """Takes in an event of the workers stream."""
        event = decoded.event
        match event:
            case worker.WorkerStarted():
                if event.worker not in self.gone:
                    self.live[event.worker] = event
            case worker.WorkerStopped():
                # What one says that was declared lost before counts for nothing: its place is somebody else's.
                self.live.pop(event.worker, None)
                said = Gone(role=event.role, slot=event.slot, code=event.code, reason=event.reason)
                self.gone.setdefault(event.worker, said)
            case worker.WorkerLost():
                self.live.pop(event.worker, None)
                lost = Gone(role=event.role, slot=event.slot, reason=event.reason, lost=True)
                self.gone.setdefault(event.worker, lost)
            case _:
                pass

    def explorers(self) -> list[worker.WorkerStarted]:
        """Live explorers by slot; those of other machines may share one."""
        live = (started for started in self.live.values() if started.role == "explorer")
        return sorted(live, key=lambda started: (started.slot, started.worker))

"""The workers of an experiment: who joined, in which slot, and who left."""

from __future__ import annotations

from uuid import UUID

from rftd.streams.codec import Decoded
from rftd.streams.events import worker


class Roster:
    """Workers by id; one that stopped or was lost never comes back under the same id."""

    def __init__(self) -> None:
        self.live: dict[UUID, worker.WorkerStarted] = {}
        self.gone: dict[UUID, worker.WorkerStopped | worker.WorkerLost] = {}

    def apply(self, decoded: Decoded) -> None:
        """Takes in an event of the workers stream."""
        event = decoded.event
        match event:
            case worker.WorkerStarted():
                if event.worker not in self.gone:
                    self.live[event.worker] = event
            case worker.WorkerStopped() | worker.WorkerLost():
                self.live.pop(event.worker, None)
                # What a worker said itself counts for more, whichever came last.
                if event.worker not in self.gone or isinstance(event, worker.WorkerStopped):
                    self.gone[event.worker] = event
            case _:
                pass

    def explorers(self) -> list[worker.WorkerStarted]:
        """Live explorers by slot; those of other machines may share one."""
        live = (started for started in self.live.values() if started.role == "explorer")
        return sorted(live, key=lambda started: (started.slot, started.worker))

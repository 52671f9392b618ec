"""Messages between launcher and driver, a JSON object per line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias
from uuid import UUID

import msgspec

from rftd.workers.guest import Assignment
from rftd.workers.hosts.executor import UNKNOWN_EXIT


class ActorOrder(msgspec.Struct, frozen=True, kw_only=True, tag="order"):
    """A request to place and run a worker; sent again to each new driver."""

    assignment: Assignment
    """Experiment, role, slot and id of the worker."""
    place: str
    """The text of the worker's slot: experiment, role and slot number. An actor's name is this text and the worker's
    id.
    """
    namespace: str
    """Ray's namespace of the actor."""
    begin: bool
    """True: start the worker; False: only follow an actor that runs already, or has ended."""
    devices: int
    """Number of GPUs over all its nodes."""
    nodes: int = 1
    """Number of nodes for its processes; the worker itself is on the first."""
    threads: int
    """Number of threads for computing."""
    log_path: str
    """File of the worker's output."""
    by_node: bool
    """True if the log is in a folder named after the node's address."""
    log_level: str = "INFO"
    """Minimum level of logged lines."""
    paths: tuple[str, ...]
    """Folders that must exist on its node: the job's, and its models'."""
    release: str
    """The daemon's release of rftd, required on the node."""
    env: dict[str, str]
    """Variables set in the worker's environment; their values are shown nowhere."""
    defaults: dict[str, str] = {}
    """Variables set only if the node does not have them."""
    keep: tuple[str, ...] = ()
    """Patterns of the node's own variables to keep, besides those allowed for any program of a machine."""

    @property
    def name(self) -> str:
        """The name of the worker's actor: the slot's text and the worker's id."""
        return f"{self.place}#{self.assignment.worker}"

    @property
    def devices_of_a_node(self) -> int:
        """Number of GPUs on each node."""
        return self.devices // self.nodes


class ActorEnd(msgspec.Struct, frozen=True, kw_only=True, tag="end"):
    """A request to end a worker: with `at_once` immediately, else after its running rollouts."""

    worker: UUID
    """Id of the worker."""
    at_once: bool
    """True: the worker is killed."""


class Sweep(msgspec.Struct, frozen=True, kw_only=True, tag="sweep"):
    """A request to end all actors and placement groups of a slot. `number` identifies the request in reports."""

    number: UUID
    """Id of the request."""
    place: str
    """Text of the slot."""
    timeline: str
    """The file for the cluster's timeline; empty: no timeline is written."""


class Seek(msgspec.Struct, frozen=True, kw_only=True, tag="seek"):
    """A request for the ids of the workers with an actor in a slot. `number` identifies the request in reports."""

    number: UUID
    """Id of the request."""
    place: str
    """Text of the slot."""


Request: TypeAlias = ActorOrder | ActorEnd | Sweep | Seek
"""A message to the driver."""


class RayNode(msgspec.Struct, frozen=True, kw_only=True):
    """A living node of the cluster: its total and free resources."""

    id: str
    """Ray's id of the node."""
    address: str
    """Address of the node."""
    gpus: float
    """Total number of the node's GPUs."""
    free_gpus: float
    """Number of the node's GPUs that are not reserved."""
    cpus: float
    """Total number of the node's processors."""
    free_cpus: float
    """Number of the node's processors that are not reserved."""
    sized: bool = True
    """False until the node has reported its memory."""
    memory_bytes: int = 0
    """Total memory of the node; 0 if unknown."""
    gpu_memory_bytes: int = 0
    """Total memory of its largest GPU; 0 if unknown, or without a GPU."""


class ClusterSeen(msgspec.Struct, frozen=True, kw_only=True, tag="cluster"):
    """A report of all living nodes of the cluster."""

    nodes: tuple[RayNode, ...]
    """The living nodes."""


class ClusterAway(msgspec.Struct, frozen=True, kw_only=True, tag="away"):
    """A report that the cluster does not answer or refuses the daemon; the driver ends afterwards."""

    reason: str
    """Why the cluster cannot be used."""
    fix: str
    """Advice on how to make the cluster usable, for people."""


class ActorSeen(msgspec.Struct, frozen=True, kw_only=True, tag="actor"):
    """A report of the state of a worker, of a sweep, or of a search, identified by `worker`."""

    worker: UUID
    """Id of the worker or request."""
    state: Literal["pending", "running", "ended"]
    """State of the worker, sweep or search: pending, running or ended."""
    pid: int | None = None
    """Process id of a running worker."""
    node: str = ""
    """The address of its node."""
    code: int = UNKNOWN_EXIT
    """Exit code of an ended worker."""
    reason: str = ""
    """Why it ended; empty before the end."""
    waits: str = ""
    """What a pending worker, sweep or search is blocked on; else empty."""
    unblock: str = ""
    """The event ending the wait."""
    found: tuple[UUID, ...] = ()
    """The workers found by a search."""


Report: TypeAlias = ClusterSeen | ClusterAway | ActorSeen
"""A message from the driver."""


def line(message: Request | Report) -> bytes:
    """Returns a message as one line of JSON, with its line feed."""
    return msgspec.json.encode(message) + b"\n"


def whole_lines(stream: Iterable[bytes]) -> Iterator[bytes]:
    """Yields the lines of a pipe that end with a line feed; a last line truncated by the writer's death is dropped."""
    return (text for text in stream if text.endswith(b"\n"))

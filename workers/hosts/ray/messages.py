"""Messages between the launcher and its driver, one JSON object a line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias
from uuid import UUID

import msgspec

from rftd.workers.guest import Assignment


class ActorOrder(msgspec.Struct, frozen=True, kw_only=True, tag="order"):
    """A worker that is wanted; said again to each new driver."""

    assignment: Assignment
    place: str
    """The text that all workers of one experiment, role and slot share; actors are named by it and the worker's id."""
    namespace: str
    begin: bool
    """False: it runs somewhere, or has ended; it is not started."""
    devices: int
    """GPUs, of all its nodes together."""
    nodes: int = 1
    """The nodes over which its processes are spread; the worker itself is on the first."""
    threads: int
    log_path: str
    by_node: bool
    """The log is in a folder that is named after the node's address."""
    log_level: str = "INFO"
    paths: tuple[str, ...]
    """Folders that must be on its node: the job's, and its models'."""
    release: str
    env: dict[str, str]
    """Variables that the worker finds in its environment; their values are shown nowhere."""
    defaults: dict[str, str] = {}
    """Variables that it finds there unless the node has its own."""
    keep: tuple[str, ...] = ()
    """Patterns of the node's own variables that stay, beside those that any program of a machine may have."""

    @property
    def name(self) -> str:
        """The name of the worker's actor."""
        return f"{self.place}#{self.assignment.worker}"

    @property
    def devices_of_a_node(self) -> int:
        """GPUs of each of its nodes."""
        return self.devices // self.nodes


class ActorEnd(msgspec.Struct, frozen=True, kw_only=True, tag="end"):
    """A worker is to leave."""

    worker: UUID
    at_once: bool


class Sweep(msgspec.Struct, frozen=True, kw_only=True, tag="sweep"):
    """The wish that whatever is left of a place ends."""

    number: UUID
    place: str
    timeline: str
    """The file to which the cluster's timeline is written; empty: none."""


class Seek(msgspec.Struct, frozen=True, kw_only=True, tag="seek"):
    """The question which workers are in a place."""

    number: UUID
    place: str


Request: TypeAlias = ActorOrder | ActorEnd | Sweep | Seek


class RayNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the cluster that is alive."""

    id: str
    address: str
    gpus: float
    free_gpus: float
    cpus: float
    free_cpus: float
    sized: bool = True
    """False while it has not answered how much memory it has."""
    memory_bytes: int = 0
    """All of its memory; 0 where it did not say."""
    gpu_memory_bytes: int = 0
    """All memory of its largest GPU; 0 where it did not say, or has none."""


class ClusterSeen(msgspec.Struct, frozen=True, kw_only=True, tag="cluster"):
    """The cluster, as the driver sees it now."""

    nodes: tuple[RayNode, ...]


class ClusterAway(msgspec.Struct, frozen=True, kw_only=True, tag="away"):
    """The cluster cannot be reached, or refuses; the driver ends after it."""

    reason: str
    fix: str


class ActorSeen(msgspec.Struct, frozen=True, kw_only=True, tag="actor"):
    """The state of a worker, of a sweep, or of a search."""

    worker: UUID
    state: Literal["pending", "running", "ended"]
    pid: int | None = None
    node: str = ""
    """The address of its node."""
    code: int = -1
    reason: str = ""
    """The reason of its end, if it has ended."""
    waits: str = ""
    """The obstacle, if it is pending."""
    unblock: str = ""
    found: tuple[UUID, ...] = ()
    """The workers that a search found."""


Report: TypeAlias = ClusterSeen | ClusterAway | ActorSeen


def line(message: Request | Report) -> bytes:
    """The message as a line."""
    return msgspec.json.encode(message) + b"\n"


def whole_lines(stream: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a pipe. One that its writer was killed in the middle of is none."""
    return (each for each in stream if each.endswith(b"\n"))

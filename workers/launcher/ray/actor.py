"""`WorkerActor`: what an actor of Ray's runs: a guest, with its log file, on a node that has what it needs.

Its methods are plain: with a coroutine among them Ray would run all of them on an event loop of its own. Ray calls each
on a thread, several at once, so that a worker can be told to stop.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Final

import msgspec

from rftd.ops import limits
from rftd.ops.cycles import tune_collector
from rftd.ops.decoding import json_decoder
from rftd.ops.logs import configure, logger
from rftd.ops.releases import release_of
from rftd.workers.guest import Guest, Outcome
from rftd.workers.launcher.leftovers import MARK, end_all, visible
from rftd.workers.launcher.ray.messages import ActorOrder
from rftd.workers.launcher.started_here import StartedHere

ASKED_S: Final = 20.0
"""The time in which somebody asks how an actor ended, and again that in which somebody ends it; then it ends itself."""


class ActorBegun(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of an actor that was told to begin."""

    pid: int
    refusal: str = ""
    """The reason why nothing can run on this node; empty if it runs."""


class WorkerActor:
    """One worker. Whatever it starts ends with it."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._guest: Guest | None = None
        self._over = threading.Event()
        self._told = threading.Event()
        self._outcome = Outcome(code=0)

    def begin(self, order: bytes) -> bytes:
        """Starts the worker, unless that was done; the answer says where, or why not."""
        wanted = json_decoder(ActorOrder).decode(order)
        with self._turn:
            refusal = "" if self._guest is not None else self._started(wanted)
        return msgspec.json.encode(ActorBegun(pid=os.getpid(), refusal=refusal))

    def outcome(self) -> bytes:
        """Its end, once it has ended."""
        self._over.wait()
        self._told.set()
        return msgspec.json.encode(self._outcome)

    def stop(self) -> None:
        """Asks the worker to drain and leave."""
        if self._guest is not None:
            self._guest.stop()

    def _started(self, order: ActorOrder) -> str:
        import ray.util

        node = ray.util.get_node_ip_address()
        if (refusal := refusal_of(order, node)) != "":
            return refusal
        _write_to(Path(order.log_path), node if order.by_node else "")
        # Not by the runtime environment, which Ray's control store keeps and shows: some of them are secrets.
        os.environ.update(order.env)
        configure()
        ours = order.assignment
        if ours.role == "explorer":  # a trainer's cycles may hold activations
            tune_collector()
        os.environ.setdefault(MARK, order.place)
        _end_predecessors(os.environ[MARK])
        started = StartedHere()
        self._guest = Guest(ours, logger(role=ours.role, slot=ours.slot, node=node))
        self._guest.begin()
        threading.Thread(target=self._watch, args=(self._guest, started), name="watch", daemon=True).start()
        return ""

    def _watch(self, guest: Guest, started: StartedHere) -> None:
        ended = guest.outcome()
        assert ended is not None
        started.end()
        self._outcome = ended
        self._over.set()
        self._told.wait(ASKED_S)
        # Whoever was told and lives ends the actor at once; the one that asked may have died long before the end.
        threading.Event().wait(ASKED_S)
        # Its daemon is gone. Its placement group is detached from every job, so nobody else would give back what it
        # holds; this ends the actor, too.
        from ray.util import placement_group

        if (group := placement_group.get_current_placement_group()) is not None:
            placement_group.remove_placement_group(group)
        threading.Event().wait(ASKED_S)
        os._exit(ended.code)


def refusal_of(order: ActorOrder, node: str) -> str:
    """The reason why a worker cannot run on this node; empty if it can."""
    here = release_of("rftd")
    if here != order.release:
        return f"node {node} has rftd {here}, and the daemon is of {order.release}; fix: install the same one"
    for path in order.paths:
        if not Path(path).exists():
            return f"node {node} has no {path}; fix: give every node the folders of job, models and datasets"
    return ""


def _write_to(path: Path, node: str) -> None:
    """Output and errors go to the worker's log from now on, after what its predecessors wrote there."""
    where = path.parent / node / path.name if node else path
    where.parent.mkdir(parents=True, exist_ok=True)
    number = os.open(where, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for standard in (1, 2):
        os.dup2(number, standard)
    os.close(number)
    # Ray has put writers of its own in their place.
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)


def _end_predecessors(mark: str) -> None:
    """Ends what actors of this place left on this node when they died: an engine's processes hold its device."""
    waited_s = 0.0

    def wait(pause_s: float) -> bool:
        nonlocal waited_s
        threading.Event().wait(pause_s)
        waited_s += pause_s
        return waited_s > limits.LEFTOVER_GRACE_S + limits.KILL_TIMEOUT_S

    # By their mark alone: all actors of a node are in one session, that of its raylet.
    end_all(lambda: [each.process for each in visible() if each.mark == mark], wait, lambda _: None)

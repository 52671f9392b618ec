"""An actor's arrival on a node: the variables it comes with, what the node must have, and what is ended there first."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from rftd.ops import limits
from rftd.ops.releases import release_of
from rftd.workers.hosts.environment import reduce_environment
from rftd.workers.hosts.leftovers import MARK, end_all, visible
from rftd.workers.hosts.ray.messages import ActorOrder


def variables_of(order: ActorOrder, mark: str) -> dict[str, str]:
    """The environment of an actor of a worker, by whose mark what it leaves behind is found."""
    threads = str(order.threads)
    return {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "TOKENIZERS_PARALLELISM": "false",
        # A title that is written over the environment would hide the mark.
        "SPT_NOENV": "1",
        MARK: mark,
    }


def take_variables(order: ActorOrder) -> None:
    """Gives this process the environment of the order's worker: it began with all that its node was started with."""
    reduce_environment(order.keep)
    for name, value in order.defaults.items():
        os.environ.setdefault(name, value)
    # Not by the runtime environment, which Ray's control store keeps and shows: some of them are secrets.
    os.environ.update(order.env)


def refusal_of(order: ActorOrder, node: str) -> str:
    """The reason why a worker cannot run on this node; empty if it can."""
    here = release_of("rftd")
    if here != order.release:
        return f"node {node} has rftd {here}, and the daemon is of {order.release}; fix: install the same one"
    for path in order.paths:
        if not Path(path).exists():
            return f"node {node} has no {path}; fix: give every node the folders of job, models and datasets"
    return ""


def write_to(path: Path, node: str) -> None:
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


def end_predecessors(mark: str) -> None:
    """Ends what actors of this place left on this node when they died: an engine's processes hold its device."""
    waited_s = 0.0

    def wait(pause_s: float) -> bool:
        nonlocal waited_s
        threading.Event().wait(pause_s)
        waited_s += pause_s
        return waited_s > limits.LEFTOVER_GRACE_S + limits.KILL_TIMEOUT_S

    # By their mark alone: all actors of a node are in one session, that of its raylet.
    end_all(lambda: [each.process for each in visible() if each.mark == mark], wait, lambda _: None)

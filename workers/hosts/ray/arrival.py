"""An actor's arrival on a node: environment variables, the node's requirements, and clean-up before the start."""

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
    """Returns the environment variables set for a worker's actor: its thread limits, and `mark`, which identifies its
    processes.
    """
    threads = str(order.threads)
    return {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "TOKENIZERS_PARALLELISM": "false",
        # A title written over the environment would hide the mark.
        "SPT_NOENV": "1",
        MARK: mark,
    }


def take_variables(order: ActorOrder) -> None:
    """Replaces the node's variables in the current process by those of the ordered worker."""
    reduce_environment(order.keep)
    for name, content in order.defaults.items():
        os.environ.setdefault(name, content)
    # Not by the runtime environment, because Ray's control store keeps and shows variables, including secrets.
    os.environ.update(order.env)


def refusal_of(order: ActorOrder, node: str) -> str:
    """Returns why the worker cannot run on the node: another release of rftd, or a missing folder; empty if it can."""
    installed = release_of("rftd")
    if installed != order.release:
        return f"node {node} has rftd {installed}, and the daemon is of {order.release}; fix: install the same one"
    for path in order.paths:
        if not Path(path).exists():
            return f"node {node} has no {path}; fix: give every node the folders of job, models and datasets"
    return ""


def redirect_output(path: Path, node: str) -> None:
    """Redirects standard output and error to the end of the worker's log file; with `node`, in a folder of that name
    beside `path`.
    """
    where = path.parent / node / path.name if node else path
    where.parent.mkdir(parents=True, exist_ok=True)
    number = os.open(where, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for standard in (1, 2):
        os.dup2(number, standard)
    os.close(number)
    # Ray has replaced both streams by own writers.
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)


def end_predecessors(mark: str) -> None:
    """Ends the processes on this node with the mark of the slot: children of earlier actors, which may occupy the
    device.
    """
    waited_s = 0.0

    def wait(pause_s: float) -> bool:
        nonlocal waited_s
        threading.Event().wait(pause_s)
        waited_s += pause_s
        return waited_s > limits.LEFTOVER_GRACE_S + limits.KILL_TIMEOUT_S

    # By the mark alone: all actors of a node share the raylet's session.
    end_all(lambda: [candidate.process for candidate in visible() if candidate.mark == mark], wait, lambda _: None)

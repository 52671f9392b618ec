"""Ten disturbances of a run on Kafka and Postgres: its servers die or stop, alone or with the run's own processes."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

import psutil
from synthetic.servers.cluster_scene import ClusterScene

from rftd.daemon.stack.process import LocalServer


class Disturbance(NamedTuple):
    """What is struck at one moment. Servers come back, the daemon is started again, and workers are its business."""

    name: str
    broker: bool = False
    postgres: bool = False
    daemon: bool = False
    workers: bool = False
    stopped: bool = False
    """True if the servers are stopped for long (SIGSTOP), and not killed."""


DISTURBANCES: Final = (
    Disturbance("broker killed", broker=True),
    Disturbance("broker stopped", broker=True, stopped=True),
    Disturbance("Postgres killed", postgres=True),
    Disturbance("Postgres stopped", postgres=True, stopped=True),
    Disturbance("broker with the daemon", broker=True, daemon=True),
    Disturbance("Postgres with the daemon", postgres=True, daemon=True),
    Disturbance("broker with the workers", broker=True, workers=True),
    Disturbance("Postgres with the workers", postgres=True, workers=True),
    Disturbance("daemon with the workers", daemon=True, workers=True),
    Disturbance("all at once", broker=True, postgres=True, daemon=True, workers=True),
)


def strike(scene: ClusterScene, name: str, disturbance: Disturbance, chance: random.Random, stopped_s: float) -> None:
    """Strikes an experiment's run, and returns once the servers answer again.

    Killed ones are started again after one to five seconds, stopped ones continue after `stopped_s`. The daemon is
    started again meanwhile, and may not be ready yet.
    """
    cluster = scene.cluster
    servers: list[LocalServer] = [cluster.broker] if disturbance.broker else []
    servers += [cluster.postgres] if disturbance.postgres else []
    worker_pids = live_workers(scene, name) if disturbance.workers else []
    if disturbance.stopped:
        with stopped(servers):
            time.sleep(stopped_s)
        return
    for server in servers:
        server.kill()
    if disturbance.daemon:
        scene.kill("daemon", name)
    for pid in worker_pids:
        scene.kill_pid(pid)
    time.sleep(chance.uniform(1.0, 5.0))
    in_threads([server.start for server in servers])


def live_workers(scene: ClusterScene, name: str) -> list[int]:
    """The process ids of the experiment's workers; waits until there is an explorer and a trainer."""
    while True:
        page = scene.page(name)
        live = [worker for worker in page.workers if worker.state == "live"] if page is not None else []
        pids = {worker.pid: worker.role for worker in live if psutil.pid_exists(worker.pid)}
        if {"explorer", "trainer"} <= set(pids.values()):
            return list(pids)
        time.sleep(0.1)


@contextmanager
def stopped(servers: list[LocalServer]) -> Iterator[None]:
    """Servers whose processes stand still while the block runs."""
    processes = [process for server in servers for process in _family(server)]
    try:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGSTOP)
        yield
    finally:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)


def in_threads(works: list[Callable[[], None]]) -> None:
    """Returns once all of them have, which run beside one another."""
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _family(server: LocalServer) -> list[psutil.Process]:
    """The server's process and its children, the parent first: stopped, it starts no others."""
    assert server.pid is not None
    parent = psutil.Process(server.pid)
    return [parent, *parent.children(recursive=True)]

"""A Ray cluster of this machine, of several nodes; only where ray is installed."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil

STORE_SIZE_BYTES = 80 * 2**20
_NAMES = """
import sys, ray
ray.init(sys.argv[1], log_to_driver=False, configure_logging=False)
for each in ray.util.list_named_actors(all_namespaces=True):
    print("ACTOR", each["name"])
for each in ray.util.placement_group_table().values():
    if each["state"] != "REMOVED":
        print("GROUP", each["name"])
"""


_SLOW = ("timed out during startup", "Timed out waiting for file", "Failed to connect to GCS")
"""Texts of Ray's errors for a node slower than 30 s."""


def ask_for_a_token() -> None:
    """Clusters that this process makes ask for a token from now on. To be called before ray is imported."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


class RayNodes:
    """A head without room for workers, and nodes that come and go. It asks for a token, which this process knows."""

    def __init__(self) -> None:
        ask_for_a_token()
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": STORE_SIZE_BYTES}
        self._cluster = _made(lambda: Cluster(initialize_head=True, head_node_args=head))
        self._nodes: list[Any] = []

    @property
    def address(self) -> str:
        """The address to connect to."""
        return str(self._cluster.address)

    def add(self, cpus: int = 2, **variables: str) -> None:
        """A node with so many places for workers, whose raylet has these environment variables."""
        more = {"num_cpus": cpus, "object_store_memory": STORE_SIZE_BYTES, "env_vars": variables}
        self._nodes.append(_made(lambda: self._cluster.add_node(**more)))

    def newest_raylet(self) -> int:
        """The process of the newest node."""
        return int(self._nodes[-1].all_processes["raylet"][0].process.pid)

    def lose_node_of(self, process: psutil.Process) -> None:
        """Kills the raylet of the node on which a process runs, and tidies up what is left of it."""
        above = {each.pid for each in process.parents()}
        lost = next(each for each in self._nodes if each.all_processes["raylet"][0].process.pid in above)
        os.kill(lost.all_processes["raylet"][0].process.pid, signal.SIGKILL)
        self._nodes.remove(lost)
        self._cluster.remove_node(lost, allow_graceful=False)

    def lose_newest(self) -> None:
        """Kills the raylet of the newest node, and tidies up what is left of it."""
        os.kill(self.newest_raylet(), signal.SIGKILL)
        self.forget_newest()

    def forget_newest(self) -> None:
        """Tidies up what is left of a node whose raylet was killed."""
        self._cluster.remove_node(self._nodes.pop(), allow_graceful=False)

    def left(self) -> list[str]:
        """Actors and placement groups that are there."""
        command = [sys.executable, "-P", "-c", _NAMES, self.address]
        said = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
        return [each for each in said.splitlines() if each.startswith(("ACTOR", "GROUP"))]

    def close(self) -> None:
        """Ends every process of it, by its number."""
        mine = psutil.Process().children(recursive=True)
        self._cluster.shutdown()
        _, alive = psutil.wait_procs([each for each in mine if "ray" in _command(each)], timeout=10)
        for each in alive:
            each.kill()


def _made(make: Callable[[], Any]) -> Any:
    """The result of `make`, tried again for as long as the test may take: Ray gives a node 30 s, however busy it is."""
    while True:
        try:
            return make()
        except Exception as error:
            if not any(text in str(error) for text in _SLOW):
                raise


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


@contextmanager
def ray_nodes() -> Iterator[RayNodes]:
    """A cluster with one node for workers, for as long as the block runs."""
    nodes = RayNodes()
    try:
        nodes.add()
        yield nodes
    finally:
        nodes.close()

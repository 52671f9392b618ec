"""`WorkerEnvironment`: the environment that a worker is started with. It is built by what is allowed, for everybody.

A worker runs what its experiment says. It has what any program of the machine may have, the variables that its own
specification and role need, and those that the owner of the daemon names by `--pass-env`; never the daemon's own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Final

from rftd.ops.machine_environment import PROXIES, machine_environment, matches
from rftd.workers.hosts.executor import WorkerOrder
from rftd.workers.hosts.leftovers import MARK
from rftd.workers.weights.device import ADDRESS

_OURS: Final = ("RFTD_FAULTS", "RFTD_FAULTS_HITS", ADDRESS, *PROXIES)
"""Variables that every worker has beside those of its machine."""
_DAEMONS: Final = ("RFTD_TOKEN", "RFTD_POSTGRES", "PG*")
"""The keys to the daemon and its tables: no worker has them, whoever names them."""


class WorkerEnvironment:
    """Builds environments of workers from the daemon's."""

    def __init__(
        self, environ: Mapping[str, str] | None = None, *, needed: Iterable[str] = (), pass_env: Iterable[str] = ()
    ) -> None:
        """`environ` is the daemon's, as it is when a worker starts. Every worker gets the variables that are `needed`,
        such as those of the log; `pass_env` are patterns of the owner's."""
        self._environ = os.environ if environ is None else environ
        self._needed = tuple(needed)
        self.pass_env = tuple(pass_env)

    def of(self, order: WorkerOrder) -> dict[str, str]:
        """The environment of a worker of this machine."""
        return self.of_machine() | self.named_by(order)

    def of_machine(self) -> dict[str, str]:
        """The part that all workers of this machine share."""
        ours = {name: self._environ[name] for name in _OURS if name in self._environ}
        return machine_environment(self._environ) | ours | self.passed()

    def named_by(self, order: WorkerOrder) -> dict[str, str]:
        """The variables that the order names and that the daemon has, with those that every worker needs."""
        return self._taken(name for name in (*order.environment, *self._needed) if name in self._environ)

    def of_tracker(self, names: Iterable[str]) -> dict[str, str]:
        """The environment of a tracker's process, with the variables of these names that the daemon has."""
        return self.of_machine() | self._taken(name for name in (*names, *self._needed) if name in self._environ)

    def passed(self) -> dict[str, str]:
        """The variables that the owner passes on."""
        return self._taken(name for name in self._environ if matches(name, self.pass_env))

    def of_family(self, pattern: str) -> dict[str, str]:
        """The variables whose names match the pattern."""
        return self._taken(name for name in self._environ if matches(name, (pattern,)))

    def _taken(self, names: Iterable[str]) -> dict[str, str]:
        return {name: self._environ[name] for name in names if not matches(name, _DAEMONS)}


def reduce_environment(keep: tuple[str, ...]) -> None:
    """Takes from this process what a worker is not to have. On a Ray node it began with what the node was started with.

    Names that match `keep` stay, and whatever is Ray's own.
    """
    stays = machine_environment(os.environ).keys() | set(_OURS)
    patterns = (*keep, "RAY_*", MARK, "SPT_NOENV")
    for name in list(os.environ):
        if name not in stays and (matches(name, _DAEMONS) or not matches(name, patterns)):
            del os.environ[name]

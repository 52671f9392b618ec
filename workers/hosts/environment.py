"""`WorkerEnvironment`: the environment variables of a worker, built from an allow-list, for every experiment.

A worker runs code chosen by the experiment. The worker gets the variables needed by any program of the machine, the
variables required by specification and role, and the owner's `--pass-env` variables; never the daemon's own.
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
"""Variables of every worker besides those of its machine."""
_DAEMONS: Final = ("RFTD_TOKEN", "RFTD_POSTGRES", "PG*")
"""Secrets of the daemon and its tables: withheld from every worker, even if requested by name."""


class WorkerEnvironment:
    """Builds environments of workers from the daemon's, by allow-list, order, and the owner's patterns."""

    def __init__(
        self, environ: Mapping[str, str] | None = None, *, needed: Iterable[str] = (), pass_env: Iterable[str] = ()
    ) -> None:
        """`environ` is the daemon's, as of the start of a worker. Every worker gets the `needed` variables, for example
        those of the log; `pass_env` are patterns set by the owner.
        """
        self._environ = os.environ if environ is None else environ
        self._needed = tuple(needed)
        self.pass_env = tuple(pass_env)

    def of(self, order: WorkerOrder) -> dict[str, str]:
        """Returns the environment of a local worker: the common part, and the variables of its order."""
        return self.of_machine() | self.named_by(order)

    def of_machine(self) -> dict[str, str]:
        """Returns the part shared by all local workers: variables of the machine, and the owner's."""
        ours = {name: self._environ[name] for name in _OURS if name in self._environ}
        return machine_environment(self._environ) | ours | self.passed()

    def named_by(self, order: WorkerOrder) -> dict[str, str]:
        """Returns the daemon's variables named by the order or needed by every worker."""
        return self._without_secrets(name for name in (*order.environment, *self._needed) if name in self._environ)

    def of_tracker(self, names: Iterable[str]) -> dict[str, str]:
        """Returns the environment of a tracker's process, including the daemon's variables of the given names."""
        return self.of_machine() | self._without_secrets(
            name for name in (*names, *self._needed) if name in self._environ
        )

    def passed(self) -> dict[str, str]:
        """Returns the variables passed on by the owner with `--pass-env`, without the daemon's secrets."""
        return self._without_secrets(name for name in self._environ if matches(name, self.pass_env))

    def of_family(self, pattern: str) -> dict[str, str]:
        """Returns the variables with names matching the pattern, without the daemon's secrets."""
        return self._without_secrets(name for name in self._environ if matches(name, (pattern,)))

    def _without_secrets(self, names: Iterable[str]) -> dict[str, str]:
        """Returns the daemon's variables of these names, except its own secrets."""
        return {name: self._environ[name] for name in names if not matches(name, _DAEMONS)}


def reduce_environment(keep: tuple[str, ...]) -> None:
    """Removes all variables forbidden for a worker from the current process, which inherited the node's variables on a
    Ray node.

    Names matching `keep` stay, and so do Ray's own.
    """
    allowed = machine_environment(os.environ).keys() | set(_OURS)
    patterns = (*keep, "RAY_*", MARK, "SPT_NOENV")
    for name in list(os.environ):
        if name not in allowed and (matches(name, _DAEMONS) or not matches(name, patterns)):
            del os.environ[name]

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
    """Builds the environment variables of workers from the daemon's, by an allow-list, the worker's order, and the
    owner's `--pass-env` patterns.
    """

    def __init__(
        self, environ: Mapping[str, str] | None = None, *, needed: Iterable[str] = (), pass_env: Iterable[str] = ()
    ) -> None:
        """`environ` are the daemon's variables, read anew at each start of a worker; None: `os.environ`. `needed` are
        names passed to every worker, for example those of the log; `pass_env` are the owner's name patterns.
        """
        self._environ = os.environ if environ is None else environ
        """Variables of the daemon."""
        self._needed = tuple(needed)
        """Names of variables needed by every worker."""
        self.pass_env = tuple(pass_env)
        """Patterns of variables passed by the owner."""

    def of(self, order: WorkerOrder) -> dict[str, str]:
        """Returns the environment of a local worker: variables shared by all workers, and variables named in its
        order.
        """
        return self.of_machine() | self.named_by(order)

    def of_machine(self) -> dict[str, str]:
        """Returns the variables shared by all local workers: those allowed for any program of the machine, and the
        owner's.
        """
        ours = {name: self._environ[name] for name in _OURS if name in self._environ}
        return machine_environment(self._environ) | ours | self.passed()

    def named_by(self, order: WorkerOrder) -> dict[str, str]:
        """Returns the daemon's variables named in the order or needed by every worker; unset ones are omitted."""
        return self._without_secrets(name for name in (*order.environment, *self._needed) if name in self._environ)

    def of_tracker(self, names: Iterable[str]) -> dict[str, str]:
        """Returns the environment of a tracker's process: the shared variables, and the daemon's variables listed in
        `names`.
        """
        return self.of_machine() | self._without_secrets(
            name for name in (*names, *self._needed) if name in self._environ
        )

    def passed(self) -> dict[str, str]:
        """Returns the variables passed on by the owner with `--pass-env`, without the daemon's secrets."""
        return self._without_secrets(name for name in self._environ if matches(name, self.pass_env))

    def of_family(self, pattern: str) -> dict[str, str]:
        """Returns the daemon's variables with names matching the pattern, for example `RAY_*`, without the daemon's
        secrets.
        """
        return self._without_secrets(name for name in self._environ if matches(name, (pattern,)))

    def _without_secrets(self, names: Iterable[str]) -> dict[str, str]:
        """Returns the daemon's variables of these names, except its own secrets."""
        return {name: self._environ[name] for name in names if not matches(name, _DAEMONS)}


def reduce_environment(keep: tuple[str, ...]) -> None:
    """Deletes all variables not allowed for a worker from the current process, an actor that inherited the variables of
    a Ray node.

    Names matching a pattern of `keep` stay, and so do Ray's own.
    """
    allowed = machine_environment(os.environ).keys() | set(_OURS)
    patterns = (*keep, "RAY_*", MARK, "SPT_NOENV")
    for name in list(os.environ):
        if name not in allowed and (matches(name, _DAEMONS) or not matches(name, patterns)):
            del os.environ[name]

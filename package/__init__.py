"""rftd from Python: `Client` and `AsyncClient` of a daemon, `compare`, marks of rewards and workflows, and errors.

This folder is `rftd` of the installed package, with the rooms inside: daemon, workers, storage, streams and ops. Names
are imported at their first use. docs/architecture.md, "Where to start", names the files for each kind of change.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rftd.daemon.http.client.client import AsyncClient, Client, compare
    from rftd.ops.errors import RftdError
    from rftd.workers.workflows.marks import reward, workflow

    __version__: str

__all__ = ["AsyncClient", "Client", "RftdError", "__version__", "compare", "reward", "workflow"]

_HOMES: Final = {
    "AsyncClient": "rftd.daemon.http.client.client",
    "Client": "rftd.daemon.http.client.client",
    "RftdError": "rftd.ops.errors",
    "compare": "rftd.daemon.http.client.client",
    "reward": "rftd.workers.workflows.marks",
    "workflow": "rftd.workers.workflows.marks",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from rftd.ops.releases import release_of

        return release_of("rftd")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Checks of this machine: interpreter, packages, clock and limits. Nothing is changed."""

from __future__ import annotations

import os
import resource
import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Final

from rftd.ops.clock import Clock, iso
from rftd.ops.health import Diagnosis

ROOMS: Final = ("daemon", "workers", "storage", "streams", "ops")
"""Top-level packages inside `rftd`."""
NEEDED: Final = ("apsw", "fastapi", "msgspec", "numpy", "sqlmodel", "uvicorn")
"""Packages required by rftd."""
_RELEASED_NS: Final = 1_735_689_600 * 10**9
"""2025-01-01: an earlier clock was never set."""
_OPEN_FILES: Final = 1024
"""Number of open files allowed to a process, below which a warning is given."""


def check_python(version: tuple[int, int] | None = None, *, optimised: bool | None = None) -> list[Diagnosis]:
    """Checks the version of the interpreter, and that assertions are on."""
    version = version or sys.version_info[:2]
    name = ".".join(map(str, version))
    findings = [
        Diagnosis("python", "ok", f"{name} at {sys.executable}")
        if version >= (3, 11)
        else Diagnosis("python", "fail", f"{name} is too old", "install Python 3.11 or newer")
    ]
    if sys.flags.optimize > 0 if optimised is None else optimised:
        findings.append(
            Diagnosis(
                "assertions", "fail", "off (-O or PYTHONOPTIMIZE): broken invariants would pass", "run without -O"
            )
        )
    else:
        findings.append(Diagnosis("assertions", "ok", "on"))
    return findings


def check_identity(modules: dict[str, ModuleType] | None = None) -> list[Diagnosis]:
    """Checks that no room is imported under its bare name: a second copy would not recognise the first one's types."""
    modules = dict(sys.modules) if modules is None else modules
    doubles = [name for name in ROOMS if (module := modules.get(name)) is not None and _is_ours(module, modules, name)]
    if doubles:
        return [
            Diagnosis(
                "identity",
                "fail",
                f"imported twice: {', '.join(doubles)}",
                "start Python with -P, or use the rftd command: the repository's root must not be on sys.path",
            )
        ]
    return [Diagnosis("identity", "ok", "each package is imported once")]


def check_packages(needed: tuple[str, ...] = NEEDED) -> list[Diagnosis]:
    """Checks that the packages required by rftd are installed; nothing is imported."""
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        return [Diagnosis("packages", "fail", f"missing: {', '.join(missing)}", "install the lock: make .venv/.ready")]
    return [Diagnosis("packages", "ok", f"{len(needed)} found")]


def check_clock(clock: Clock) -> list[Diagnosis]:
    """Returns the finding about this machine's clock: whether it was ever set."""
    now = iso(clock.now_ns())
    if clock.now_ns() < _RELEASED_NS:
        problem = f"says {now}, a time before this release"
        return [
            Diagnosis(
                "clock", "fail", problem, "set it (timedatectl set-ntp true): certificates and times depend on it"
            )
        ]
    return [Diagnosis("clock", "ok", f"says {now}")]


def check_limits() -> list[Diagnosis]:
    """Returns the finding about the limit of open files for processes started here."""
    # The hard limit: daemon and workers raise their own up to it.
    _, open_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    if open_files < _OPEN_FILES and open_files != resource.RLIM_INFINITY:
        problem = f"a process may have {open_files} files open: each worker and client uses some of the daemon's"
        return [Diagnosis("limits", "warn", problem, f"ulimit -n {_OPEN_FILES} before rftd serve")]
    many = "any number of" if open_files == resource.RLIM_INFINITY else f"{open_files:,}"
    return [Diagnosis("limits", "ok", f"a process may have {many} files open")]


def _is_ours(module: ModuleType, modules: dict[str, ModuleType], name: str) -> bool:
    """True for a second copy of rftd's package: a foreign package may be called `ops` too, but has other files."""
    ours = modules.get(f"rftd.{name}")
    paths = {os.path.realpath(path) for path in getattr(module, "__path__", ())}
    our_paths = {os.path.realpath(path) for path in getattr(ours, "__path__", ())} if ours is not None else set()
    return bool(paths & our_paths)

"""Checks of this machine and of the data folder. Nothing is changed: what is tried is undone."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Final

from rftd.ops.health import Diagnosis

_GIB: Final = 1024**3
LOW_DISK_GIB: Final = 5.0
NO_DISK_GIB: Final = 0.5
ROOMS: Final = ("daemon", "workers", "storage", "streams", "ops")
NEEDED: Final = ("apsw", "fastapi", "msgspec", "numpy", "safetensors", "sqlmodel", "torch", "transformers", "uvicorn")


def check_python(version: tuple[int, int] | None = None, *, optimised: bool | None = None) -> list[Diagnosis]:
    """The interpreter: its version, and that assertions are on."""
    version = version or sys.version_info[:2]
    name = ".".join(map(str, version))
    found = [
        Diagnosis("python", "ok", f"{name} at {sys.executable}")
        if version >= (3, 11)
        else Diagnosis("python", "fail", f"{name} is too old", "install Python 3.11 or newer")
    ]
    if sys.flags.optimize > 0 if optimised is None else optimised:
        found.append(
            Diagnosis(
                "assertions", "fail", "off (-O or PYTHONOPTIMIZE): broken invariants would pass", "run without -O"
            )
        )
    else:
        found.append(Diagnosis("assertions", "ok", "on"))
    return found


def check_identity(modules: dict[str, ModuleType] | None = None) -> list[Diagnosis]:
    """Checks that no room is imported under its bare name: a second copy would not know the first one's types."""
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
    """Checks that the packages rftd needs are installed; nothing is imported."""
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        return [Diagnosis("packages", "fail", f"missing: {', '.join(missing)}", "install the lock: make .venv/.ready")]
    return [Diagnosis("packages", "ok", f"{len(needed)} found")]


def check_folder(folder: Path) -> list[Diagnosis]:
    """Checks that the data folder can be written to, durably, and has room."""
    home = folder
    while not home.exists() and home != home.parent:
        home = home.parent
    if not home.is_dir():
        return [Diagnosis("folder", "fail", f"{home} is no folder", "give another --data")]
    try:
        with tempfile.NamedTemporaryFile(dir=home, prefix=".rftd-doctor-") as file:
            file.write(b"x")
            file.flush()
            # Some network file systems accept the write and refuse this: the log could acknowledge nothing there.
            os.fsync(file.fileno())
    except OSError as error:
        return [Diagnosis("folder", "fail", f"{home} cannot be written: {error.strerror}", "give another --data")]
    exists = "can be written" if folder.exists() else f"will be made in {home}"
    return [Diagnosis("folder", "ok", f"{folder} {exists}"), _disk(home)]


def _disk(home: Path) -> Diagnosis:
    free = shutil.disk_usage(home).free / _GIB
    what = f"{free:.1f} GiB free at {home}"
    if free < NO_DISK_GIB:
        return Diagnosis("disk", "fail", what, "free some space: the log refuses appends when it is full")
    if free < LOW_DISK_GIB:
        return Diagnosis("disk", "warn", what, "free some space: checkpoints and the log grow")
    return Diagnosis("disk", "ok", what)


def _is_ours(module: ModuleType, modules: dict[str, ModuleType], name: str) -> bool:
    """A stranger's package may be called `ops` too; a second copy of ours has the same files."""
    ours = modules.get(f"rftd.{name}")
    paths = {os.path.realpath(path) for path in getattr(module, "__path__", ())}
    known = {os.path.realpath(path) for path in getattr(ours, "__path__", ())} if ours is not None else set()
    return bool(paths & known) or (ours is None and any((Path(path) / "py.typed").exists() for path in paths))

"""Workflow classes named by a class path, `package.module.Class`, of an installed package without entry points."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import re
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Final, NamedTuple

from rftd.ops.errors import ConfigError
from rftd.workers.workflows.source import SourceName, check_source, imports_trinity, load_class_text
from rftd.workers.workflows.trinity.names import PACKAGE

_PATH: Final = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+", re.ASCII)
"""Form of a class path."""
_FIX: Final = "install its package where the daemon and the workers run, or correct the path"
"""Fix for a class whose package or module is missing."""


class ClassPath(NamedTuple):
    """A class of an installed module, written `package.module.Class`."""

    module: str
    """Name of the module."""
    name: str
    """Name of the class."""

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


def class_path(text: str | None) -> ClassPath | None:
    """Returns the parts of `package.module.Class`; None for another name, such as `FILE.py:NAME`."""
    if text is None or _PATH.fullmatch(text) is None or text.endswith(".py"):
        return None
    module, _, name = text.rpartition(".")
    return ClassPath(module, name)


def check_class_path(path: ClassPath) -> None:
    """Checks, without running the package, that it is installed and defines the class. Raises ConfigError."""
    text = _module_text(path)
    if text is not None:
        check_source(SourceName(path.module, path.name), text)


def load_class_path(path: ClassPath) -> object:
    """Returns the class; a module importing Trinity-RFT, which is not installed, gets rftd's form of it.

    Raises ConfigError if the module fails, or defines no such class.
    """
    text = _module_text(path)
    if text is not None and imports_trinity(text) and importlib.util.find_spec(PACKAGE) is None:
        package = path.module.rpartition(".")[0]
        return load_class_text("workflow", SourceName(path.module, path.name), text, package=package)
    try:
        return getattr(importlib.import_module(path.module), path.name)
    except Exception as error:  # a third party's module may raise anything on import
        problem = f"workflow {str(path)!r} cannot be imported: {type(error).__name__}: {error}"
        raise ConfigError(problem, fix=_FIX) from error


def _module_text(path: ClassPath) -> str | None:
    """Returns the text of the path's module; None for a module without text. Raises ConfigError if not installed."""
    spec = _find_module(path.module)
    if spec is None:
        raise ConfigError(
            f"workflow {str(path)!r}: there is no module {path.module!r} here", fix=_similar_hint(path) or _FIX
        )
    origin = spec.origin or ""
    return Path(origin).read_text(encoding="utf-8-sig") if origin.endswith(".py") else None


def _find_module(module: str) -> ModuleSpec | None:
    """Returns where a module is, without importing the packages around it."""
    top, *below = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    name = top
    for part in below:
        if spec is None or spec.submodule_search_locations is None:
            return None
        name = f"{name}.{part}"
        spec = PathFinder.find_spec(name, list(spec.submodule_search_locations))
    return spec


def _similar_hint(path: ClassPath) -> str:
    """Returns a hint for a built-in workflow of a similar name."""
    from rftd.workers.workflows.registry import WORKFLOWS

    near = difflib.get_close_matches(path.name, WORKFLOWS.names(), 1)
    return f"did you mean {near[0]!r}?" if near else ""

"""`SourceImports`: the `__import__` of one source, with Trinity-RFT's modules visible to this source alone."""

from __future__ import annotations

import builtins
import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, Final

from rftd.workers.workflows.trinity import names
from rftd.workers.workflows.trinity.registry import ClassRegistry

_CLIENTS: Final = "openai"


class SourceImports:
    """Resolves `trinity.*` for one source; `sys.modules` never has the modules, and a real package is not touched."""

    def __init__(self) -> None:
        self._modules: dict[str, ModuleType] = {}
        self._own: dict[str, ClassRegistry] = {}

    def __call__(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """Imports as `__import__` does. Raises ImportError for a name of Trinity-RFT unknown to rftd."""
        if level or not names.is_trinity(name):
            if name == _CLIENTS and importlib.util.find_spec(_CLIENTS) is None:
                return importlib.import_module("rftd.workers.workflows.trinity.openai")
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        missing = names.unavailable(name, fromlist or ())
        if missing is not None:
            raise ImportError(f"rftd has no {missing} of Trinity-RFT; {names.alternatives(name)}", name=name)
        module = self._module(name)
        for below in fromlist or ():
            if f"{name}.{below}" in names.MODULES:
                self._module(f"{name}.{below}")
        return module if fromlist else self._module(names.PACKAGE)

    def registered(self, name: str) -> type | None:
        """Returns the class registered by the source under a name; None without one."""
        for registry in self._own.values():
            if (registered := registry.get(name)) is not None:
                return registered
        return None

    def _module(self, name: str) -> ModuleType:
        module = self._modules.get(name)
        if module is not None:
            return module
        module = self._modules[name] = ModuleType(name)
        module.__path__ = []
        for attribute in names.MODULES[name]:
            place = names.place_of(name, attribute)
            if place:
                file, _, own_name = place.partition(":")
                setattr(module, attribute, getattr(importlib.import_module(file), own_name))
            else:
                setattr(module, attribute, self._registry(attribute))
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(self._module(parent), last, module)
        return module

    def _registry(self, name: str) -> ClassRegistry:
        return self._own.setdefault(name, ClassRegistry(name.lower()))

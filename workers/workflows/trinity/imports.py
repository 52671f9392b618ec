"""`SourceImports`: the `__import__` of one source, with Trinity-RFT's modules visible to this source alone."""

from __future__ import annotations

import builtins
import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, Final, TypeVar

from rftd.workers.workflows.trinity import names

T = TypeVar("T", bound=type)


class ClassRegistry:
    """The classes registered by one source."""

    def __init__(self, name: str, default_mapping: object = None) -> None:
        self.name = name
        self.modules: dict[str, type] = {}

    def get(self, module_key: str) -> type | None:
        """Returns the class of a name; None for an unknown name."""
        return self.modules.get(module_key)

    def register_module(
        self, module_name: Any = None, module_cls: type | None = None, force: bool = False, **names: Any
    ) -> Any:
        """Registers a class: as a decorator with a name, as a bare decorator, or as a call with name and class.

        Raises KeyError for a name of another class, unless `force` is true.
        """
        name = names.get("name", module_name)
        if isinstance(name, type):
            return self._add(name.__name__, name, force)
        if module_cls is not None:
            return self._add(name or module_cls.__name__, module_cls, force)

        def decorator(decorated: T) -> T:
            return self._add(name or decorated.__name__, decorated, force)

        registering: Callable[[T], T] = decorator
        return registering

    def _add(self, name: str, registered: T, force: bool) -> T:
        if not force and self.modules.get(name, registered) is not registered:
            raise KeyError(f"{name} is registered in {self.name} already")
        self.modules[name] = registered
        return registered


_OPENAI_PACKAGE: Final = "openai"
"""Package of OpenAI's client, replaced by rftd's own client if not installed."""


class SourceImports:
    """Resolves `trinity.*` for one source; `sys.modules` never has the modules, and a real package is not touched."""

    def __init__(self) -> None:
        """Begins without modules."""
        self._modules: dict[str, ModuleType] = {}
        """Modules of `trinity` made for this source, by name."""
        self._registries: dict[str, ClassRegistry] = {}
        """Registries of this source's classes, by the name of the registry in Trinity-RFT."""

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
            if name == _OPENAI_PACKAGE and importlib.util.find_spec(_OPENAI_PACKAGE) is None:
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
        for registry in self._registries.values():
            if (registered := registry.get(name)) is not None:
                return registered
        return None

    def _module(self, name: str) -> ModuleType:
        """Returns a module of `trinity`, made with its attributes and parents at first use."""
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
        """Returns this source's registry of that name, made at first use."""
        return self._registries.setdefault(name, ClassRegistry(name.lower()))

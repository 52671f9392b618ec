"""`ClassRegistry`: classes by name, as Trinity-RFT registers workflows and rewards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

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

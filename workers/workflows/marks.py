"""`@rftd.reward` and `@rftd.workflow`: marks of a function or class, checked where it is defined."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final, TypeVar

from rftd.ops.errors import ConfigError

T = TypeVar("T", bound=Callable[..., Any])
"""Type of the marked part."""

_MARK: Final = "__rftd_part__"
"""Attribute with the kind of a marked part."""


def reward(part: T) -> T:
    """Marks a function of `response`, `truth` and `task`, or a class with `score`, as a reward; returns it unchanged.

    Raises ConfigError for a class without `score`, and for parameters without names.
    """
    return _mark_part("reward", part, "score")


def workflow(part: T) -> T:
    """Marks a coroutine function of `task`, `model` and `reward`, or a class with `run`, as a workflow; returns it
    unchanged.

    Raises ConfigError for a plain function, a class without `run`, and for parameters without names.
    """
    if not inspect.isclass(part) and not inspect.iscoroutinefunction(part):
        problem = f"workflow {_name_of(part)!r} is no coroutine function"
        raise ConfigError(problem, fix=f"define it as: async def {_name_of(part)}(task, model, reward)")
    return _mark_part("workflow", part, "run")


def check_mark(kind: str, part: object) -> None:
    """Raises ConfigError for a part marked as another kind than `kind`; an unmarked part is either."""
    marked = getattr(part, _MARK, kind)
    if marked != kind:
        raise ConfigError(f"{_name_of(part)!r} is marked as a {marked}", fix=f"name it as a {marked}, not as a {kind}")


def _mark_part(kind: str, part: T, method: str) -> T:
    """Marks a part as `kind`. Raises ConfigError for a class without `method`, or a part that cannot be called by
    names.
    """
    if inspect.isclass(part):
        if not callable(getattr(part, method, None)):
            raise ConfigError(f"{kind} {_name_of(part)!r} has no method {method!r}", fix="define it")
    elif not callable(part):
        raise ConfigError(f"{kind} {part!r} is a {type(part).__name__}", fix="mark a function or a class")
    else:
        for parameter in inspect.signature(part).parameters.values():
            if parameter.kind is parameter.POSITIONAL_ONLY:
                problem = f"{kind} {_name_of(part)!r} has a parameter {parameter.name!r} without a name"
                raise ConfigError(problem, fix="remove the slash: parameters are filled by their names")
    setattr(part, _MARK, kind)
    return part


def _name_of(part: object) -> str:
    """Returns the name of a part, for errors."""
    return str(getattr(part, "__name__", part))

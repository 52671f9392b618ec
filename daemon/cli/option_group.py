"""`option_group`: several options of the command line passed to a verb as one argument."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
"""Type of the decorated function."""


def option_group(name: str, options: Sequence[Callable[[Any], Any]], make: Callable[..., object]) -> Callable[[F], F]:
    """Adds the options to a verb and passes the verb `name=make(...)` instead of the single options.

    The parameters of `make` are named like the options' parameters.
    """
    parameter_names = tuple(inspect.signature(make).parameters)

    def add(function: F) -> F:
        @functools.wraps(function)
        def grouped(*args: Any, **kwargs: Any) -> Any:
            combined = make(**{key: kwargs.pop(key) for key in parameter_names})
            return function(*args, **{name: combined}, **kwargs)

        wrapped: Any = grouped
        for option in reversed(options):
            wrapped = option(wrapped)
        return wrapped  # type: ignore[no-any-return]

    return add

"""`option_group`: several options of the command line that a verb takes as one value."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def option_group(name: str, options: Sequence[Callable[[Any], Any]], make: Callable[..., object]) -> Callable[[F], F]:
    """Adds the options to a verb, which is given `name=make(...)` in place of them.

    The parameters of `make` have the names of the options' values.
    """
    values = tuple(inspect.signature(make).parameters)

    def add(function: F) -> F:
        @functools.wraps(function)
        def grouped(*args: Any, **kwargs: Any) -> Any:
            value = make(**{key: kwargs.pop(key) for key in values})
            return function(*args, **{name: value}, **kwargs)

        wrapped: Any = grouped
        for option in reversed(options):
            wrapped = option(wrapped)
        return wrapped  # type: ignore[no-any-return]

    return add

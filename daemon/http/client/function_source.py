"""`function_source`: a Python function as the text of a file, so that it travels with an experiment; never a pickle."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final

from rftd.ops.errors import UsageError

_FIX: Final = "write it inside the function, or submit a file: ./my_parts.py:NAME"
"""Remedy for a function that needs names of the program around it."""
_DECORATORS: Final = ("reward", "workflow")
"""Decorators of this package, dropped from the text."""
_LAZY: Final = "from __future__ import annotations"
"""First line of each file: names in annotations need no import then."""


def function_source(function: Callable[..., Any]) -> str:
    """Returns a file's text defining the function or class, with imports of the modules and names used by it.

    Raises UsageError for a function without source text, with a closure, or with a name of the program around it that
    cannot be imported.
    """
    name = getattr(function, "__name__", "")
    if not name.isidentifier():
        raise UsageError(f"{function!r} has no name", fix="define it with def")
    try:
        text = _without_decorators(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError):
        problem = f"the source text of {name!r} is not known here"
        raise UsageError(problem, fix=f"write it into a file: ./my_parts.py:{name}") from None
    imports = dict.fromkeys(line for used_function in _functions(function) for line in _imports(name, used_function))
    text = "\n".join([_LAZY, "", *imports, "", text])
    try:
        exec(compile(text, f"<{name}>", "exec"), {"__name__": f"<{name}>"})  # noqa: S102 - the caller's own function
    except Exception as error:
        raise UsageError(f"{name!r} does not stand alone: {type(error).__name__}: {error}", fix=_FIX) from error
    return text


def _without_decorators(text: str) -> str:
    """Returns a definition without the decorators `@rftd.reward` and `@rftd.workflow`, which need no import then."""
    [node] = ast.parse(text).body
    lines = text.splitlines(keepends=True)
    for decorator in getattr(node, "decorator_list", []):
        if ast.unparse(decorator).rpartition(".")[2] in _DECORATORS:
            lines[decorator.lineno - 1] = ""
    return "".join(lines)


def _functions(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    """Returns the function, or the methods of a class."""
    if not inspect.isclass(function):
        return [function]
    return [member for member in vars(function).values() if inspect.isfunction(member)]


def _imports(name: str, function: Callable[..., Any]) -> Iterator[str]:
    """Yields an import for each global name used by a function."""
    used = inspect.getclosurevars(function)
    for variable in used.nonlocals:
        if variable != "__class__":
            raise UsageError(f"{name!r} closes over {variable!r}, which does not travel", fix=_FIX)
    for alias, thing in sorted(used.globals.items()):
        module, own_name = getattr(thing, "__module__", None), getattr(thing, "__name__", None)
        if isinstance(thing, ModuleType):
            yield f"import {own_name} as {alias}"
        elif own_name is None or module is None or module in ("__main__", function.__module__):
            raise UsageError(f"{name!r} uses {alias!r} of the program around it, which does not travel", fix=_FIX)
        else:
            yield f"from {module} import {own_name} as {alias}"

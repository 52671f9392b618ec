"""Pickles as inert objects: imports and calls of a pickle are recorded and never executed.

Files of FSDP and Megatron describe tensors in pickles, and a pickle is a program: unpickling runs the code of the
pickle's writer. So there is no unpickling here. `read_pickle` walks over the opcodes (`pickletools` decodes them and
knows no objects) and builds numbers, texts, tuples, lists and mappings; a global becomes a `Name`, a call of it an
`InertObject` with the arguments. There is no import, no call and no attribute of a foreign object in this module, so a
file has nothing to abuse. In addition, names without use in a description of tensors are refused, with the name,
because such a file was made for something else.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from rftd.ops.errors import DataError

MAX_PICKLE_BYTES: Final = 1 << 28
"""Largest accepted description of tensors, in bytes: a description of a million tensors is smaller."""

DAMAGE: Final = (ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError, RuntimeError)
"""Errors of code reading a damaged description as a whole one: its contents may be of any kind."""

Value: TypeAlias = Any
"""Numbers, texts, bytes, None, tuples, lists, mappings, `Name` and `InertObject`: untrusted data."""


@dataclass(frozen=True, slots=True)
class Name:
    """The name of a class or function used in a pickle, such as `torch._utils._rebuild_tensor_v2`; never imported."""

    text: str


# eq=False: some objects are keys of a mapping in one format, and comparing deep ones would recurse to full depth.
@dataclass(slots=True, eq=False)
class InertObject:
    """An object of a pickle that is never constructed: the recorded call of `name` with `arguments`, and the state to
    be set.
    """

    name: str
    arguments: tuple[Value, ...]
    state: Value = field(default=None)

    def get(self, key: str) -> Value:
        """Returns a field of the state. Raises ValueError for a missing field."""
        return field_of(self.state, key)


def field_of(state: Value, key: str) -> Value:
    """Returns a field of an object's state: a mapping, or a pair of mappings for attributes and slots. Raises
    ValueError if missing.
    """
    for mapping in state if isinstance(state, tuple) else (state,):
        if isinstance(mapping, dict) and key in mapping:
            return mapping[key]
    raise ValueError(f"an object has no {key}")


_COLLECTIONS: Final = frozenset({"collections.OrderedDict", "builtins.set", "torch.Size"})


def read_pickle(pickle_bytes: bytes, allowed: frozenset[str], where: Path) -> Value:
    """Interprets a pickle without importing or calling anything. Raises DataError for damage, and for names not in
    `allowed`.
    """
    machine = _Machine(allowed, where)
    try:
        for opcode, argument, _ in pickletools.genops(pickle_bytes):
            if opcode.name == "STOP":
                return machine.stack[-1]
            step = _STEPS.get(opcode.name)
            if step is None:
                raise ValueError(f"it uses {opcode.name}")
            step(machine, argument)
    except DAMAGE as error:
        raise DataError(f"its description of tensors cannot be read: {error}", where=str(where)) from error
    raise DataError("its description of tensors has no end", where=str(where))


class _Machine:
    """The stack, the marks and the memo of one pickle."""

    def __init__(self, allowed: frozenset[str], where: Path) -> None:
        self.stack: list[Value] = []
        self._below: list[list[Value]] = []
        self._memo: dict[int, Value] = {}
        self._allowed = allowed | _COLLECTIONS
        self._where = where

    def push(self, operand: Value) -> None:
        self.stack.append(operand)

    def mark(self) -> None:
        """Begins a new list of operands above the present ones."""
        self._below.append(self.stack)
        self.stack = []

    def marked(self) -> list[Value]:
        """Removes the operands above the last mark, and the mark, from the stack; returns them."""
        operands = self.stack
        self.stack = self._below.pop()
        return operands

    def name(self, module: Value, name: Value) -> None:
        """Pushes a global's name. Raises DataError for a name outside the allowed ones."""
        text = f"{module}.{name}" if isinstance(module, str) and isinstance(name, str) else ""
        if text not in self._allowed:
            raise DataError(
                f"the file wants {text[:200]!r}, which is not part of a tensor: nothing of it is read",
                where=str(self._where),
                fix="do not load this file with torch either, unless you know who wrote it and why",
            )
        self.push(Name(text))

    def call(self) -> None:
        """Replaces a name and its arguments by an inert object."""
        arguments = self.stack.pop()
        name = self.stack.pop()
        if not isinstance(name, Name) or not isinstance(arguments, tuple):
            raise ValueError("it calls something other than a name")
        self.push(_called(name.text, arguments))

    def set_items(self, pairs: list[Value]) -> None:
        """Sets pairs of key and content in the mapping on top of the stack."""
        target = self.stack[-1]
        if not isinstance(target, dict) or len(pairs) % 2:
            raise ValueError("it sets items of something other than a mapping")
        for key, content in zip(pairs[::2], pairs[1::2], strict=True):
            # Not tuples: hashing one nested a million times deep would overflow the processor's stack.
            if not isinstance(key, (str, int, InertObject)):
                raise ValueError(f"a mapping has a key of type {type(key).__name__}")
            target[key] = content

    def append(self, operands: list[Value]) -> None:
        """Appends operands to the list on top of the stack."""
        target = self.stack[-1]
        if not isinstance(target, list):
            raise ValueError("it appends to something other than a list")
        target.extend(operands)

    def build(self) -> None:
        """Gives the state on top of the stack to the inert object below."""
        state = self.stack.pop()
        target = self.stack[-1]
        if isinstance(target, InertObject):
            target.state = state
        elif not isinstance(target, dict):  # an OrderedDict has attributes too, without use for tensors
            raise ValueError("it sets the state of an object without one")

    def refer(self) -> None:
        self.push(InertObject("persistent", (self.stack.pop(),)))

    def remember(self, index: int | None) -> None:
        self._memo[len(self._memo) if index is None else index] = self.stack[-1]

    def recall(self, index: int) -> None:
        self.push(self._memo[index])


def _called(name: str, arguments: tuple[Value, ...]) -> Value:
    """Returns the mapping or tuple of a collection's call; an inert object for any other call."""
    if name == "collections.OrderedDict" and not arguments:
        return {}
    if name == "torch.Size" and len(arguments) == 1 and isinstance(arguments[0], (tuple, list)):
        return tuple(arguments[0])
    return InertObject(name, arguments)


def _tuple_of(count: int) -> Callable[[_Machine, Value], None]:
    def step(machine: _Machine, _: Value) -> None:
        operands = tuple(machine.stack[-count:])
        if len(operands) != count:
            raise ValueError("its stack is empty")
        del machine.stack[-count:]
        machine.push(operands)

    return step


def _stack_global(machine: _Machine, _: Value) -> None:
    name = machine.stack.pop()
    machine.name(machine.stack.pop(), name)


def _set_item(machine: _Machine, _: Value) -> None:
    content = machine.stack.pop()
    machine.set_items([machine.stack.pop(), content])


_VALUES: Final = (
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
)
_STEPS: Final[dict[str, Callable[[_Machine, Value], object]]] = {
    **dict.fromkeys(_VALUES, lambda machine, operand: machine.push(operand)),
    **dict.fromkeys(("PROTO", "FRAME"), lambda machine, operand: None),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), lambda machine, operand: machine.remember(operand)),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), lambda machine, operand: machine.recall(int(operand))),
    **dict.fromkeys(("REDUCE", "NEWOBJ"), lambda machine, _: machine.call()),
    "NONE": lambda machine, _: machine.push(None),
    "NEWTRUE": lambda machine, _: machine.push(True),
    "NEWFALSE": lambda machine, _: machine.push(False),
    "MARK": lambda machine, _: machine.mark(),
    "POP": lambda machine, _: machine.stack.pop(),
    "POP_MARK": lambda machine, _: machine.marked(),
    "EMPTY_TUPLE": lambda machine, _: machine.push(()),
    "EMPTY_LIST": lambda machine, _: machine.push([]),
    "EMPTY_DICT": lambda machine, _: machine.push({}),
    "EMPTY_SET": lambda machine, _: machine.push([]),
    "TUPLE": lambda machine, _: machine.push(tuple(machine.marked())),
    "TUPLE1": _tuple_of(1),
    "TUPLE2": _tuple_of(2),
    "TUPLE3": _tuple_of(3),
    "APPEND": lambda machine, _: machine.append([machine.stack.pop()]),
    "APPENDS": lambda machine, _: machine.append(machine.marked()),
    "ADDITEMS": lambda machine, _: machine.append(machine.marked()),
    "SETITEM": _set_item,
    "SETITEMS": lambda machine, _: machine.set_items(machine.marked()),
    "BUILD": lambda machine, _: machine.build(),
    "BINPERSID": lambda machine, _: machine.refer(),
    "GLOBAL": lambda machine, operand: machine.name(*str(operand).split(" ", 1)),
    "STACK_GLOBAL": _stack_global,
}

"""`blocks_of` finds the YAML in a page of text; `indented` gives a block its depth back that a page has lost."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, get_args, get_origin

from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.schema.section import Section
from rftd.daemon.config.verl.table import TABLE

Names: TypeAlias = "Mapping[str, Names | None]"
"""The names that a section has, each with those below it; None: anything stands there, or nothing."""

_YAML: Final = re.compile(r"\s*(- )?[A-Za-z_][\w.]*:( .*)?$|\s*- \S.*$|\s*#.*$|\s*\.\.\.$")
_LINE: Final = re.compile(r"(?P<item>- )?(?P<key>[A-Za-z_]\w*):(?P<value> .*)?$")
_LIST: Final = "[]"
"""Stands in the names of a list for its items."""


@dataclass(frozen=True, slots=True)
class DocumentBlock:
    """Some lines of a page that are YAML."""

    line: int
    """Where it begins, from 1."""
    text: str


def blocks_of(page: str) -> Iterator[DocumentBlock]:
    """The blocks of a page that begin with a section of the experiment file, or of veRL's tree."""
    tops = {*Experiment.model_fields, *_of_verl()}
    held: list[str] = []
    first = 0
    for number, line in enumerate([*page.splitlines(), "end"], start=1):
        begins = line.rstrip().partition(":")[0] in tops or line == "# Properly add the following configs in gsm8k.yaml"
        if _YAML.match(line) and (held or begins):
            first = first if held else number
            held.append(line)
        elif held and (line.strip() or not held):
            yield from _whole(first, held)
            held = []
        elif held:
            held.append("")
    yield from _whole(first, held)


def _whole(first: int, lines: list[str]) -> Iterator[DocumentBlock]:
    # A mark for "and so on" is no YAML.
    kept = [line for line in lines if line.strip() != "..."]
    text = "\n".join(kept).strip("\n")
    if len(text.splitlines()) > 1:
        yield DocumentBlock(first, indented(text) if _is_flat(kept) else text)


def _is_flat(lines: list[str]) -> bool:
    return all(line == line.lstrip() for line in lines) and any(line.endswith(":") for line in lines)


@dataclass(slots=True)
class _Open:
    """A section that lines still go to."""

    names: Names | None
    depth: int
    given: set[str] = field(default_factory=set)
    empty: bool = True


def indented(flat: str) -> str:
    """The block with each line below the deepest open section that has its name, and has not got it yet."""
    opened = [_Open(_of_file(), 0)]
    lines: list[str] = []
    for line in flat.splitlines():
        match = _LINE.match(line)
        if match is None:
            lines.append("  " * opened[-1].depth + line)
            continue
        key = match["key"]
        if match["item"]:
            at = max(n for n, each in enumerate(opened) if each.names is not None and _LIST in each.names)
            opened = opened[: at + 1]
            below = opened[at].names
            assert below is not None
            opened.append(_Open(below[_LIST], opened[at].depth + 1))
        else:
            opened = opened[: _place(opened, key) + 1]
        here = opened[-1]
        here.empty = False
        here.given.add(key)
        depth = here.depth - 1 if match["item"] else here.depth
        lines.append("  " * depth + line)
        if not (match["value"] or "").split("#")[0].strip():
            opened.append(_Open((here.names or {}).get(key), here.depth + 1))
    return "\n".join(lines)


def _place(opened: list[_Open], key: str) -> int:
    if opened[-1].names is None and opened[-1].empty:
        return len(opened) - 1  # arguments: whatever comes first is theirs
    for at in reversed(range(len(opened))):
        names = opened[at].names
        if names is not None and key in names and key not in opened[at].given:
            return at
    raise AssertionError(f"no open section has {key}")


def _of_file() -> Names:
    names = _names_of(Experiment)
    trainer = names["trainer"]
    assert trainer is not None
    stage = (names["stages"] or {})[_LIST] or {}
    with_verl = {**trainer, "trainer_config": _of_verl()}
    return {**names, "trainer": with_verl, "stages": {_LIST: {**stage, "trainer": with_verl}}}


def _names_of(kind: type[Section]) -> Names:
    return {name: _held(info.annotation) for name, info in kind.model_fields.items()}


def _held(annotation: Any) -> Names | None:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return _names_of(annotation)
    of_list = get_origin(annotation) is list
    for part in get_args(annotation):
        names = _held(part)
        if names is not None:
            return {_LIST: names} if of_list else names
    return None


def _of_verl() -> Names:
    names: dict[str, Any] = {}
    for key in TABLE:
        below = names
        for part in key.name.removesuffix(".*").split("."):
            below = below.setdefault(part, {})
    return names

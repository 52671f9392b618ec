"""Mutations of an experiment file: each error must have the field, its line and column, and the name that was meant."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from synthetic.daemon.config_fields import with_field

from rftd.daemon.config.field_path import FieldPath, show
from rftd.daemon.config.issue import ConfigErrors
from rftd.daemon.config.loading import load_text
from rftd.ops import limits
from rftd.ops.errors import ConfigError, UsageError


@dataclass(frozen=True, slots=True)
class Mutation:
    """One thing that is wrong with a file."""

    path: FieldPath
    value: Any
    meant: str = ""
    """The right name, of a misspelt one."""


def misspelt(name: str) -> str:
    """The name without a letter of its middle."""
    return name[: len(name) // 2] + name[len(name) // 2 + 1 :]


def _place(text: str, path: FieldPath, *, at_key: bool) -> str:
    """Line and column of a field, as PyYAML itself reads the text."""
    node = yaml.compose(text, Loader=yaml.CSafeLoader)
    mark = node.start_mark
    for part in path:
        if isinstance(part, int):
            node = node.value[part]
            mark = node.start_mark
        else:
            key, node = next(pair for pair in node.value if pair[0].value == part)
            mark = key.start_mark if at_key else node.start_mark
    return f"{mark.line + 1}:{mark.column + 1}"


@dataclass(slots=True)
class MutationScore:
    """The outcome of all mutations."""

    made: int = 0
    names: int = 0
    accepted: list[str] = field(default_factory=list)
    unplaced: list[str] = field(default_factory=list)
    unsuggested: list[str] = field(default_factory=list)

    def add(self, base: dict[str, Any], mutations: Iterable[Mutation]) -> None:
        """Loads one file with all of these mutations, for errors come at once."""
        mutations = list(mutations)
        if not mutations:
            return
        tree = base
        for each in mutations:
            tree = with_field(tree, each.path, each.value)
        text = yaml.safe_dump(tree, sort_keys=False)
        try:
            load_text(text, "exp.yaml", environ={}, cwd=Path("/w"))
            errors: tuple[ConfigError, ...] = ()
        except ConfigErrors as found:
            errors = found.errors
        for each in mutations:
            self._judge(text, each, errors)

    def _judge(self, text: str, mutation: Mutation, errors: tuple[ConfigError, ...]) -> None:
        self.made += 1
        name = show(mutation.path)
        mine = [error for error in errors if error.field == name]
        if not mine:
            self.accepted.append(f"{name}: {mutation.value!r}")
            return
        place = _place(text, mutation.path, at_key=bool(mutation.meant))
        if not any(error.where == f"exp.yaml:{place}" for error in mine):
            self.unplaced.append(f"{name} at {place}: {mine[0].where}")
        if mutation.meant:
            self.names += 1
            if not any(mutation.meant in (error.fix or "") for error in mine):
                self.unsuggested.append(f"{name}: {mine[0].fix}")

    def miss(self, base: dict[str, Any], paths: Iterable[FieldPath]) -> None:
        """Loads one file without each of these fields, which must be named at the section where it is missing."""
        for path in paths:
            tree = copy.deepcopy(base)
            section: Any = tree
            for part in path[:-1]:
                section = section[part]
            section.pop(path[-1], None)
            text = yaml.safe_dump(tree, sort_keys=False)
            try:
                load_text(text, "exp.yaml", environ={}, cwd=Path("/w"))
                errors: tuple[UsageError, ...] = ()
            except ConfigErrors as found:
                errors = found.errors
            self.made += 1
            mine = [error for error in errors if error.field == show(path)]
            if not mine:
                self.accepted.append(f"{show(path)} is missing: {[str(error) for error in errors]}")
            elif not any(error.where and error.where.startswith("exp.yaml:") for error in mine):
                self.unplaced.append(f"{show(path)} is missing: {mine[0].where}")

    def check(self) -> None:
        """Holds the score against what is promised."""
        assert self.accepted == []
        assert len(self.unplaced) <= 0.01 * self.made, self.unplaced
        assert len(self.unsuggested) <= 0.05 * self.names, self.unsuggested


def batched(mutations: list[Mutation]) -> Iterator[list[Mutation]]:
    """As many at a time as are reported, and none within the value of another."""
    chunk: dict[FieldPath, Mutation] = {}
    for each in mutations:
        if each.path in chunk or len(chunk) == limits.CONFIG_ERRORS // 2:
            yield list(chunk.values())
            chunk = {}
        chunk[each.path] = each
    yield list(chunk.values())

"""The schema of the experiment file: every field once, with its mark and where it stands, and how one is set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from pydantic.fields import FieldInfo

from rftd.daemon.config.field_path import FieldPath
from rftd.daemon.config.schema.algorithm import CORRECTION_KINDS
from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.schema.policy import POLICY_KINDS, AnyPolicy
from rftd.daemon.config.schema.section import Section, mark_of
from rftd.streams.spec.declaration import ACTS, FieldEffect


@dataclass(frozen=True, slots=True)
class SchemaField:
    """A field of the file, no section."""

    path: FieldPath
    """0 stands for an item of a list, `NAME` for one of a mapping."""
    section: type[Section]
    info: FieldInfo
    mark: FieldEffect
    kind: str = ""
    """The kind of policy or correction that has it; empty for a field of every file."""

    @property
    def name(self) -> str:
        """The field's own name."""
        return str(self.path[-1])


def schema_fields() -> Iterator[SchemaField]:
    """Every field but those of `stages`, which repeat the others."""
    yield from _below(Experiment, (), ACTS)


def _below(section: type[Section], above: FieldPath, around: FieldEffect, kind: str = "") -> Iterator[SchemaField]:
    for name, info in section.model_fields.items():
        path = (*above, name)
        if path == ("stages",):
            continue
        # Two sections are of one kind of several: each has fields of its own.
        if path in (("policy",), ("algorithm", "rollout_correction", "corrections")):
            yield SchemaField(path, section, info, ACTS)
            for each, of_kind in (POLICY_KINDS if name == "policy" else CORRECTION_KINDS).items():
                yield from _below(of_kind, path if name == "policy" else (*path, 0), ACTS, each)
            continue
        if kind and name == "kind":
            continue
        if kind and section is not AnyPolicy and name in AnyPolicy.model_fields and kind != next(iter(POLICY_KINDS)):
            continue  # said with the first kind
        mark = around if around.effect != "acts" else mark_of(info)
        held, step = _section_in(info.annotation)
        if held is None:
            yield SchemaField(path, section, info, mark, kind)
        else:
            yield from _below(held, (*path, *step), mark)


def _section_in(annotation: Any, step: FieldPath = ()) -> tuple[type[Section] | None, FieldPath]:
    """The section that a field holds, and the way to it through a list or a mapping."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation, step
    if get_origin(annotation) is list:
        step = (0,)
    elif get_origin(annotation) is dict:
        step = ("NAME",)
    for part in get_args(annotation):
        found = _section_in(part, step)
        if found[0] is not None:
            return found
    return None, ()


def with_field(tree: Any, path: FieldPath, value: Any) -> Any:
    """The tree with one field set, and what is missing on the way to it."""
    if not path:
        return value
    head, *rest = path
    if isinstance(head, int):
        items = list(tree) if tree else [{}]
        items[head] = with_field(items[head], tuple(rest), value)
        return items
    tree = dict(tree or {})
    tree[head] = with_field(tree.get(head), tuple(rest), value)
    return tree

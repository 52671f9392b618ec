"""`data_sections`: the sections of a file, and of its stages, with tasks or rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from rftd.daemon.config.field_path import FieldPath


class DataSection(NamedTuple):
    """A taskset, or a buffer of rows, in an unchecked file."""

    path: FieldPath
    """Path of the section in the file."""
    fields: dict[str, Any]
    """The section itself; changes to it change the file."""

    @property
    def of_tasks(self) -> bool:
        """True for a taskset."""
        return "explorer_input" in self.path


def data_sections(config: dict[str, Any]) -> Iterator[DataSection]:
    """Yields the sections of a file, and of its stages, that describe tasksets or buffers of rows; changing a section's
    fields changes the file.
    """
    return _sections(config, (), "")


def _sections(node: object, path: FieldPath, mode: str) -> Iterator[DataSection]:
    """Yields the tasksets and row buffers below `node`, a file or a stage at `path`; `mode` is the default of a missing
    `mode`.
    """
    if not isinstance(node, dict):
        return
    mode = str(node.get("mode") or mode).lower()
    for half, names in (
        ("explorer_input", ("taskset", "tasksets", "eval_tasksets")),
        ("trainer_input", _row_buffer_names(mode)),
    ):
        for name in names:
            yield from _sections_below(_descend(node, "buffer", half, name), (*path, "buffer", half, name))
    stages = node.get("stages")
    for number, stage in enumerate(stages if isinstance(stages, list) else ()):
        yield from _sections(stage, (*path, "stages", number), mode)


def _descend(node: Any, *names: str) -> Any:
    """Returns the node below `node` at these nested keys; None if one is missing."""
    for name in names:
        node = node.get(name) if isinstance(node, dict) else None
    return node


def _row_buffer_names(mode: str) -> tuple[str, ...]:
    # In an exploring stage, the experience buffer holds experiences, which are kept in the log.
    """Returns the names of the buffers holding rows in a stage of this mode; an experience buffer has rows only in mode
    `train`.
    """
    return ("auxiliary_buffers", "experience_buffer") if mode == "train" else ("auxiliary_buffers",)


def _sections_below(node: Any, path: FieldPath) -> Iterator[DataSection]:
    """Yields each section in a node: one mapping, a list of mappings, or mappings under names in
    `auxiliary_buffers`.
    """
    if isinstance(node, list):
        for number, section in enumerate(node):
            yield from _sections_below(section, (*path, number))
    elif isinstance(node, dict) and path[-1] == "auxiliary_buffers":
        for name, section in node.items():
            yield from _sections_below(section, (*path, name))
    elif isinstance(node, dict):
        yield DataSection(path, node)

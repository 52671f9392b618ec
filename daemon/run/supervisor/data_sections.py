"""`data_sections`: the sections of a file, and of its stages, with tasks or rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from rftd.daemon.config.field_path import FieldPath


class DataSection(NamedTuple):
    """A taskset, or a buffer of rows, in an unchecked file."""

    path: FieldPath
    fields: dict[str, Any]

    @property
    def of_tasks(self) -> bool:
        """True for a taskset."""
        return "explorer_input" in self.path


def data_sections(config: dict[str, Any]) -> Iterator[DataSection]:
    """Yields the tasksets and row buffers of a file and of its stages; changes to their fields change the file."""
    return _sections(config, (), "")


def _sections(node: object, path: FieldPath, mode: str) -> Iterator[DataSection]:
    """Yields the tasksets and row buffers of a file or a stage."""
    if not isinstance(node, dict):
        return
    mode = str(node.get("mode") or mode).lower()
    for half, names in (("explorer_input", ("taskset", "tasksets", "eval_tasksets")), ("trainer_input", _rows(mode))):
        for name in names:
            yield from _named(_descend(node, "buffer", half, name), (*path, "buffer", half, name))
    stages = node.get("stages")
    for number, stage in enumerate(stages if isinstance(stages, list) else ()):
        yield from _sections(stage, (*path, "stages", number), mode)


def _descend(node: Any, *names: str) -> Any:
    for name in names:
        node = node.get(name) if isinstance(node, dict) else None
    return node


def _rows(mode: str) -> tuple[str, ...]:
    # In an exploring stage, the experience buffer holds experiences, which are kept in the log.
    return ("auxiliary_buffers", "experience_buffer") if mode == "train" else ("auxiliary_buffers",)


def _named(node: Any, path: FieldPath) -> Iterator[DataSection]:
    if isinstance(node, list):
        for number, section in enumerate(node):
            yield from _named(section, (*path, number))
    elif isinstance(node, dict) and path[-1] == "auxiliary_buffers":
        for name, section in node.items():
            yield from _named(section, (*path, name))
    elif isinstance(node, dict):
        yield DataSection(path, node)

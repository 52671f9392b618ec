"""Fields used by both halves of an experiment: a half leaving one out uses the other half's value.

`filled` writes the missing keys of a half into its file; `taken_from` copies the fields of a stage derived from such
keys.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from rftd.streams.spec.spec import StageSpec

Place: TypeAlias = tuple[str, ...]
_StructT = TypeVar("_StructT", bound=msgspec.Struct)
_BUFFER: Final[Place] = ("buffer", "trainer_input", "experience_buffer")


@dataclass(frozen=True, slots=True)
class SharedGroup:
    """Keys of the user's file, and the fields of a stage derived from them together."""

    keys: tuple[Place, ...]
    fields: tuple[Place, ...]
    of_tasks: bool = False
    """True if, with no value in any file, the half with the tasks decides."""
    of_machine: bool = False
    """True if, with no value in any file, the machine decides: the explorers', or a running trainer's."""

    def first_decides(self, explores: bool, *, settled: bool) -> bool:
        """True if the half submitted first decides fields without a value in any file; `settled`: it has trained."""
        if self.of_machine:
            return explores or settled
        return self.of_tasks and explores

    def second_decides(self) -> bool:
        """True if the half submitted second, with the tasks, decides fields without a value in any file."""
        return self.of_tasks or self.of_machine

    def said_in(self, config: Mapping[str, Any], stage: int) -> dict[Place, Any]:
        """Returns a file's keys for the stage, as leaves; a stage's own override those of the whole file."""
        leaves = dict(_leaves(config, self.keys))
        leaves |= _leaves(_stage(config, stage), self.keys)
        return leaves


GROUPS: Final = (
    SharedGroup(
        keys=(
            *(("synchronizer",), ("policy",), ("explorer", "max_inflight_batches")),
            *(("algorithm", "sample_strategy"), ("algorithm", "sample_strategy_args")),
            *((*_BUFFER, "replay_buffer"), (*_BUFFER, "max_read_timeout"), (*_BUFFER, "capacity")),
        ),
        fields=(
            *(("synchronizer",), ("policy",), ("max_read_timeout_s",)),
            *(("algorithm", "sample_strategy"), ("algorithm", "sample_strategy_args")),
        ),
        of_tasks=True,
    ),
    SharedGroup(
        keys=(("algorithm", "advantage_fn"), ("algorithm", "advantage_fn_args")),
        fields=(("algorithm", "advantage"), ("algorithm", "advantage_args")),
    ),
    SharedGroup(keys=(("buffer", "train_batch_size"),), fields=(("train_batch_size",),), of_tasks=True),
    SharedGroup(keys=(("explorer", "rollout_model", "dtype"),), fields=(("rollout", "dtype"),), of_machine=True),
)
"""The fields used alike by explorers, planner and trainer."""
_KEYS: Final = tuple(key for group in GROUPS for key in group.keys)


def filled(config: Mapping[str, Any], other_config: Mapping[str, Any], *more: Place) -> dict[str, Any]:
    """Copies the file `config`, adding the shared keys, and those in `more`, missing here and present in
    `other_config`.
    """
    merged: dict[str, Any] = copy.deepcopy(dict(config))
    _fill(merged, other_config, (*_KEYS, *more), merged)
    stages = merged.get("stages")
    other_stages = other_config.get("stages")
    if isinstance(stages, list) and isinstance(other_stages, list) and len(stages) == len(other_stages):
        for stage, other_stage in zip(stages, other_stages, strict=True):
            _fill(stage, other_stage, (*_KEYS, *more), merged)
    return merged


def taken_from(source: StageSpec, stage: StageSpec, group: SharedGroup) -> StageSpec:
    """Returns the stage with the group's fields of `source`."""
    for field in group.fields:
        stage = _replaced(stage, source, field)
    return stage


def _replaced(target: _StructT, source: Any, field: Place) -> _StructT:
    head, *inner_path = field
    replacement = getattr(source, head)
    if inner_path:
        replacement = _replaced(getattr(target, head), replacement, tuple(inner_path))
    return msgspec.structs.replace(target, **{head: replacement})


def _fill(target: dict[str, Any], source: Mapping[str, Any], keys: tuple[Place, ...], whole: Mapping[str, Any]) -> None:
    for key_path, leaf in _leaves(source, keys):
        if _holds(target, key_path) or _holds(whole, key_path):
            continue
        section = target
        for name in key_path[:-1]:
            section = section.setdefault(name, {})
            if not isinstance(section, dict):
                break
        else:
            section[key_path[-1]] = copy.deepcopy(leaf)


def _leaves(config: Mapping[str, Any], keys: tuple[Place, ...]) -> Iterator[tuple[Place, Any]]:
    """Yields the values below the keys; a list is one value, and null counts as missing."""
    for key in keys:
        node: Any = config
        for name in key:
            node = node.get(name) if isinstance(node, Mapping) else None
        yield from _below(node, key)


def _below(node: Any, path: Place) -> Iterator[tuple[Place, Any]]:
    if isinstance(node, Mapping):
        for name, child in node.items():
            yield from _below(child, (*path, name))
    elif node is not None:
        yield path, node


def _holds(config: Mapping[str, Any], path: Place) -> bool:
    """True if the file has a value at the path, or a value instead of a section above it."""
    node: Any = config
    for name in path:
        if not isinstance(node, Mapping):
            return node is not None
        node = node.get(name)
    return node is not None


def _stage(config: Mapping[str, Any], stage: int) -> Mapping[str, Any]:
    stages = config.get("stages")
    if not isinstance(stages, list) or stage >= len(stages) or not isinstance(stages[stage], Mapping):
        return {}
    stage_config: Mapping[str, Any] = stages[stage]
    return stage_config

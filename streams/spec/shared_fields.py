"""Fields that both halves of an experiment use: a half that leaves one out has the other one's.

`filled` writes what a half left out into its file; `taken_from` takes the fields of a stage that follow from such keys.
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
    """Keys of the user's file, and the fields of a stage that follow from them together."""

    keys: tuple[Place, ...]
    fields: tuple[Place, ...]
    of_tasks: bool = False
    """True if, where no file says anything, the half with the tasks decides."""
    of_machine: bool = False
    """True if, where no file says anything, the machine decides: the explorers', or that of a trainer that began."""

    def first_decides(self, explores: bool, *, settled: bool) -> bool:
        """True if the half that came first decides where no file says anything; `settled` is it once it trained."""
        if self.of_machine:
            return explores or settled
        return self.of_tasks and explores

    def second_decides(self) -> bool:
        """True if the half that came second, with the tasks, decides where no file says anything."""
        return self.of_tasks or self.of_machine

    def said_in(self, config: Mapping[str, Any], stage: int) -> dict[Place, Any]:
        """The keys that a file has for the stage, as leaves; a stage's own count before those of the whole file."""
        found = dict(_leaves(config, self.keys))
        found |= _leaves(_stage(config, stage), self.keys)
        return found


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
"""The fields that explorers, planner and trainer go by alike."""
_KEYS: Final = tuple(key for group in GROUPS for key in group.keys)


def filled(config: Mapping[str, Any], other: Mapping[str, Any], *more: Place) -> dict[str, Any]:
    """A copy of the file `config` with the shared keys, and those of `more`, that it leaves out and `other` has."""
    made: dict[str, Any] = copy.deepcopy(dict(config))
    _fill(made, other, (*_KEYS, *more), made)
    stages = made.get("stages")
    others = other.get("stages")
    if isinstance(stages, list) and isinstance(others, list) and len(stages) == len(others):
        for one, its in zip(stages, others, strict=True):
            _fill(one, its, (*_KEYS, *more), made)
    return made


def taken_from(source: StageSpec, stage: StageSpec, group: SharedGroup) -> StageSpec:
    """The stage with the group's fields of `source`."""
    for field in group.fields:
        stage = _replaced(stage, source, field)
    return stage


def _replaced(target: _StructT, source: Any, field: Place) -> _StructT:
    head, *rest = field
    value = getattr(source, head)
    if rest:
        value = _replaced(getattr(target, head), value, tuple(rest))
    return msgspec.structs.replace(target, **{head: value})


def _fill(made: dict[str, Any], other: Mapping[str, Any], keys: tuple[Place, ...], whole: Mapping[str, Any]) -> None:
    for place, value in _leaves(other, keys):
        if _holds(made, place) or _holds(whole, place):
            continue
        section = made
        for name in place[:-1]:
            section = section.setdefault(name, {})
            if not isinstance(section, dict):
                break
        else:
            section[place[-1]] = copy.deepcopy(value)


def _leaves(config: Mapping[str, Any], keys: tuple[Place, ...]) -> Iterator[tuple[Place, Any]]:
    """The values below the keys; a list is one value, and null says nothing."""
    for key in keys:
        node: Any = config
        for name in key:
            node = node.get(name) if isinstance(node, Mapping) else None
        yield from _below(node, key)


def _below(node: Any, path: Place) -> Iterator[tuple[Place, Any]]:
    if isinstance(node, Mapping):
        for name, value in node.items():
            yield from _below(value, (*path, name))
    elif node is not None:
        yield path, node


def _holds(config: Mapping[str, Any], path: Place) -> bool:
    """True if the file says something at the place, or of a section above it that is no section."""
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
    found: Mapping[str, Any] = stages[stage]
    return found

"""`normalise` moves fields of the older spelling to their current paths; values are read by the schema."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from rftd.daemon.config.field_path import FieldPath, child, matches, show
from rftd.daemon.config.issue import Contradiction, Issue
from rftd.daemon.config.source import SourceMap

_BUFFERS: Final = (
    ("buffer", "trainer_input", "experience_buffer"),
    ("buffer", "trainer_input", "auxiliary_buffers", "*"),
)
"""Paths of buffers of experiences and rows."""
_TASKSETS: Final = (
    ("buffer", "explorer_input", "taskset"),
    ("buffer", "explorer_input", "tasksets", "*"),
    ("buffer", "explorer_input", "eval_tasksets", "*"),
)
"""Paths of tasksets."""


def _renames() -> tuple[tuple[FieldPath, FieldPath], ...]:
    """Returns pairs of the older and the current path of a field, globally and within a stage."""
    inside = ("buffer", "explorer_input")
    pairs: list[tuple[FieldPath, FieldPath]] = [
        (("buffer", name), (*inside, name))
        for name in ("default_workflow_type", "default_eval_workflow_type", "default_reward_fn_type")
    ]
    for buffer in _BUFFERS:
        pairs.append(((*buffer, "use_priority_queue"), (*buffer, "replay_buffer", "enable")))
        pairs.append(((*buffer, "reuse_cooldown_time"), (*buffer, "replay_buffer", "reuse_cooldown_time")))
    pairs += [((*taskset, "task_selector"), (*taskset, "data_selector")) for taskset in _TASKSETS]
    pairs += [
        (("algorithm", "optimizer", "warmup_style"), ("algorithm", "optimizer", "lr_scheduler_type")),
        (("explorer", "runner_num"), ("explorer", "runner_per_model")),
        (("explorer", "api_port"), ("explorer", "proxy_port")),
        (("trainer", "actor_grad_clip"), ("trainer", "grad_clip")),
        (("trainer", "ppo_max_token_len_per_gpu"), ("trainer", "max_token_len_per_gpu")),
        (
            ("buffer", "trainer_input", "sft_warmup_dataset"),
            ("buffer", "trainer_input", "auxiliary_buffers", "sft_dataset"),
        ),
        # veRL's path of the field, used in the guide's examples.
        (("trainer", "trainer_config", "trainer", "critic_warmup"), ("trainer", "critic_warmup")),
        (("trainer", "trainer_config", "trainer", "max_actor_ckpt_to_keep"), ("trainer", "max_checkpoints_to_keep")),
    ]
    # A stage has the sections of the file, so each move exists below `stages` as well.
    return tuple(pairs) + tuple((("stages", "*", *old), ("stages", "*", *new)) for old, new in pairs)


RENAMES: Final = _renames()
"""Older and current paths of fields."""
_RESUME: Final[FieldPath] = ("trainer", "trainer_config", "trainer", "resume_mode")
"""veRL's field choosing between a fresh start and a resumed one."""
_CONTINUE: Final[FieldPath] = ("continue_from_checkpoint",)
"""Field for continuing an experiment."""
_REPLAY_KWARGS: Final[tuple[FieldPath, ...]] = tuple(
    (*above, *buffer, "replay_buffer_kwargs") for above in ((), ("stages", "*")) for buffer in _BUFFERS
)
"""Paths of the mapping with priority function and arguments in files of 2025."""


def current_name(path: FieldPath) -> FieldPath:
    """Returns the current name of a field or section named in either spelling."""
    for old, new in RENAMES:
        if len(path) >= len(old) and matches(old, path[: len(old)]):
            # Each `*` of the new path takes the key or index at the position of the same `*` in the old path.
            stars = iter(key for key, pattern in zip(path, old, strict=False) if pattern == "*")
            return (*(next(stars) if key == "*" else key for key in new), *path[len(old) :])
    return path


def old_names(section: FieldPath) -> list[str]:
    """Returns the older names of a section's fields, for suggestions."""
    return [str(old[-1]) for old, _ in RENAMES if matches(old[:-1], section)]


def normalise(tree: dict[str, Any], source: SourceMap) -> tuple[dict[str, Any], list[Issue], list[str]]:
    """Moves fields of `tree` to the current spelling in place; returns the tree, contradictions, and notes on the
    moves.
    """
    moves = _Moves(tree, source)
    for old, _ in RENAMES:
        _visit(tree, old, (), lambda parent, here: moves.move(parent, here, current_name(here)))
    _visit(tree, _RESUME, (), moves.resume)
    for replay in _REPLAY_KWARGS:
        _visit(tree, replay, (), moves.replay)
    return tree, moves.issues, moves.notes


@dataclass(slots=True)
class _Moves:
    """The moves within one tree: contradictions with the current spelling, and notes on moved fields."""

    tree: dict[str, Any]
    """Tree under change."""
    source: SourceMap
    """Positions of the file's fields."""
    issues: list[Issue] = field(default_factory=list)
    """Contradictions between the two spellings."""
    notes: list[str] = field(default_factory=list)
    """Notes on moved fields."""

    def replay(self, parent: dict[str, Any], path: FieldPath) -> None:
        """Moves the priority function and arguments out of the single mapping used by files of 2025."""
        name = str(path[-1])
        arguments = parent[name]
        if arguments is None:
            del parent[name]
        if not isinstance(arguments, dict):
            return  # the schema reports it
        section = (*path[:-1], "replay_buffer")
        for argument in list(arguments):
            target = (*section, argument) if argument == "priority_fn" else (*section, "priority_fn_args", argument)
            self.move(arguments, (*path, argument), target)
        if not arguments:
            del parent[name]

    def resume(self, parent: dict[str, Any], path: FieldPath) -> None:
        """Moves veRL's setting for a fresh start to the current field; other settings stay for the tree's check."""
        name = str(path[-1])
        if parent[name] == "disable":
            parent[name] = False
            self.move(parent, path, _CONTINUE)

    def move(self, parent: dict[str, Any], path: FieldPath, target: FieldPath) -> None:
        """Moves the field at `path`, contained in `parent`, to its current path `target`."""
        name = str(path[-1])
        old_value = parent[name]
        section: Any = self.tree
        for key in target[:-1]:
            if isinstance(section, dict) and section.get(key) is None:
                section[str(key)] = {}
            section = child(section, key)
        if not isinstance(section, dict):
            return  # the section has the wrong type, which the schema reports
        del parent[name]
        # Files of a transition period may set both spellings; only differing values are an error.
        present = section.get(target[-1])
        if present is not None and old_value is not None and present != old_value:
            problem = f"set twice with different values, here and as {show(target)}"
            self.issues.append(Issue(path, problem, f"keep {show(target)} only", Contradiction, at_key=True))
            return
        # A null in the older spelling means unset, and must not hide the current field.
        if old_value is not None:
            section[target[-1]] = old_value
        self.source.moved.setdefault(target, path)
        self.notes.append(f"{show(path)} is the older spelling of {show(target)}")


def _visit(
    node: Any, pattern: FieldPath, path: FieldPath, visitor: Callable[[dict[str, Any], FieldPath], None]
) -> None:
    """Calls `visitor(parent, path)` for every field of the tree matching `pattern`."""
    step = pattern[0]
    remaining = pattern[1:]
    if not remaining:
        if isinstance(node, dict) and step in node:
            visitor(node, (*path, step))
        return
    if step == "*":
        pairs = (
            list(node.items()) if isinstance(node, dict) else list(enumerate(node)) if isinstance(node, list) else []
        )
        for key, node_below in pairs:
            _visit(node_below, remaining, (*path, key), visitor)
    elif isinstance(node, dict) and step in node:
        _visit(node[step], remaining, (*path, step), visitor)

"""`normalise` moves fields of the older spelling to their current places; values are read by the schema."""

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
_TASKSETS: Final = (
    ("buffer", "explorer_input", "taskset"),
    ("buffer", "explorer_input", "tasksets", "*"),
    ("buffer", "explorer_input", "eval_tasksets", "*"),
)


def _renames() -> tuple[tuple[FieldPath, FieldPath], ...]:
    """Pairs of the older and the current place of a field, globally and within a stage."""
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
        # veRL's place for it, which the guide's examples have.
        (("trainer", "trainer_config", "trainer", "critic_warmup"), ("trainer", "critic_warmup")),
        (("trainer", "trainer_config", "trainer", "max_actor_ckpt_to_keep"), ("trainer", "max_checkpoints_to_keep")),
    ]
    # A stage has the same sections as the file, so that each move exists below `stages` as well.
    return tuple(pairs) + tuple((("stages", "*", *old), ("stages", "*", *new)) for old, new in pairs)


RENAMES: Final = _renames()
_RESUME: Final[FieldPath] = ("trainer", "trainer_config", "trainer", "resume_mode")
_CONTINUE: Final[FieldPath] = ("continue_from_checkpoint",)
_REPLAY_KWARGS: Final[tuple[FieldPath, ...]] = tuple(
    (*above, *buffer, "replay_buffer_kwargs") for above in ((), ("stages", "*")) for buffer in _BUFFERS
)


def current_name(path: FieldPath) -> FieldPath:
    """The current name of a field, or of a section, that is named in either spelling."""
    for old, new in RENAMES:
        if len(path) >= len(old) and matches(old, path[: len(old)]):
            # Each `*` of the new place takes the key or index that stood at the same one of the old place.
            stars = iter(part for part, pattern in zip(path, old, strict=False) if pattern == "*")
            return (*(next(stars) if part == "*" else part for part in new), *path[len(old) :])
    return path


def old_names(section: FieldPath) -> list[str]:
    """Names that a section had in an older spelling; for suggestions."""
    return [str(old[-1]) for old, _ in RENAMES if matches(old[:-1], section)]


def normalise(tree: dict[str, Any], source: SourceMap) -> tuple[dict[str, Any], list[Issue], list[str]]:
    """`tree` in the current spelling, contradictions between the spellings, and what changed, in words.

    The tree is changed in place.
    """
    moves = _Moves(tree, source)
    for old, _ in RENAMES:
        _each(tree, old, (), lambda parent, here: moves.move(parent, here, current_name(here)))
    _each(tree, _RESUME, (), moves.resume)
    for replay in _REPLAY_KWARGS:
        _each(tree, replay, (), moves.replay)
    return tree, moves.issues, moves.notes


@dataclass(slots=True)
class _Moves:
    """The moves within one tree: what contradicted the current spelling, and what was moved, in words."""

    tree: dict[str, Any]
    source: SourceMap
    issues: list[Issue] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def replay(self, parent: dict[str, Any], here: FieldPath) -> None:
        """Moves the priority function and its arguments, which 2025's files have in one mapping, to their places."""
        name = str(here[-1])
        arguments = parent[name]
        if arguments is None:
            del parent[name]
        if not isinstance(arguments, dict):
            return  # the schema reports it
        section = (*here[:-1], "replay_buffer")
        for argument in list(arguments):
            target = (*section, argument) if argument == "priority_fn" else (*section, "priority_fn_args", argument)
            self.move(arguments, (*here, argument), target)
        if not arguments:
            del parent[name]

    def resume(self, parent: dict[str, Any], here: FieldPath) -> None:
        """Moves veRL's word for a new start to its place; its other words stay for the check of the tree."""
        name = str(here[-1])
        if parent[name] == "disable":
            parent[name] = False
            self.move(parent, here, _CONTINUE)

    def move(self, parent: dict[str, Any], here: FieldPath, target: FieldPath) -> None:
        """Moves a field of `parent`, which is at `here`, to its current place."""
        name = str(here[-1])
        value = parent[name]
        section: Any = self.tree
        for key in target[:-1]:
            if isinstance(section, dict) and section.get(key) is None:
                section[str(key)] = {}
            section = child(section, key)
        if not isinstance(section, dict):
            return  # the section has the wrong type, which the schema reports
        del parent[name]
        # Files of a time of change give both spellings; that is wrong only where they disagree.
        present = section.get(target[-1])
        if present is not None and value is not None and present != value:
            what = f"set twice with different values, here and as {show(target)}"
            self.issues.append(Issue(here, what, f"keep {show(target)} only", Contradiction, at_key=True))
            return
        # An older field that is null means that it was not given, and must not hide the current one.
        if value is not None:
            section[target[-1]] = value
        self.source.moved.setdefault(target, here)
        self.notes.append(f"{show(here)} is the older spelling of {show(target)}")


def _each(node: Any, pattern: FieldPath, path: FieldPath, act: Callable[[dict[str, Any], FieldPath], None]) -> None:
    """Calls `act(parent, path)` for every field of the tree that has the shape of `pattern`."""
    step = pattern[0]
    rest = pattern[1:]
    if not rest:
        if isinstance(node, dict) and step in node:
            act(node, (*path, step))
        return
    if step == "*":
        pairs = (
            list(node.items()) if isinstance(node, dict) else list(enumerate(node)) if isinstance(node, list) else []
        )
        for key, value in pairs:
            _each(value, rest, (*path, key), act)
    elif isinstance(node, dict) and step in node:
        _each(node[step], rest, (*path, step), act)

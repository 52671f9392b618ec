"""`origins` explains for each value of an effective experiment where the value was set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, get_args, get_origin

from rftd.daemon.config.field_path import FieldPath, leaves, matches, parse
from rftd.daemon.config.resolve.verl import CHECKPOINT_CONTENTS_KEYS, FIELDS_BY_VERL_KEY
from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.schema.policy import POLICY_KINDS
from rftd.daemon.config.schema.section import Section
from rftd.daemon.config.source import SourceMap, SourcePlace


def _below_trainer(key: FieldPath) -> tuple[FieldPath, ...]:
    """Returns the possible paths of a key of veRL's tree, where a file may leave out the first level."""
    return ("trainer", "trainer_config", *key), ("trainer", "trainer_config", *key[1:])


_TASKSETS: Final[FieldPath] = ("buffer", "explorer_input", "*")
"""Path of a taskset, or of a list of tasksets."""
_INPUT: Final[FieldPath] = ("buffer", "explorer_input")
"""Section of the tasks."""
_SAMPLED: Final = ("temperature", "top_p", "top_k", "repetition_penalty")
"""Sampling settings of a taskset inherited from the rollout model's section, or from `model`."""
_ALIASES: Final[tuple[tuple[FieldPath, tuple[FieldPath, ...]], ...]] = (
    (("buffer", "explorer_input", "taskset"), ((*_INPUT, "tasksets", 0),)),
    (("buffer", "total_steps"), (("trainer", "total_steps"),)),
    (("trainer", "grad_clip"), (("algorithm", "optimizer", "clip_grad"),)),
    (("algorithm", "optimizer", "clip_grad"), (("trainer", "grad_clip"),)),
    *((field, _below_trainer(key)) for key, field in FIELDS_BY_VERL_KEY.items()),
    *(
        (("algorithm", "optimizer", "clip_grad"), _below_trainer(key))
        for key in FIELDS_BY_VERL_KEY
        if key[-1] == "grad_clip"
    ),
    *((("trainer", "save_hf_checkpoint"), _below_trainer(key)) for key in CHECKPOINT_CONTENTS_KEYS),
)
"""Fields or sections, each with alternative fields that set the same values."""
_INHERITED: Final[Mapping[str, tuple[FieldPath, ...]]] = {
    "default_workflow_type": ((*_INPUT, "default_workflow_type"),),
    "default_reward_fn_type": ((*_INPUT, "default_reward_fn_type"),),
    **{name: (("explorer", "rollout_model", name), ("model", name)) for name in _SAMPLED},
    "max_tokens": (("model", "max_response_tokens"),),
    "min_tokens": (("model", "min_response_tokens"),),
    **{name: ((*_INPUT, name),) for name in ("system_prompt", "reply_prefix")},
}
"""Fields of a taskset inherited from other sections."""
_RECEIVERS: Final = {
    "extra_engine_args": "engine_type",
    "workflow_args": "default_workflow_type",
    "reward_fn_args": "default_reward_fn_type",
}
"""Argument fields, and the sibling field naming the receiver of the arguments."""
_UNKNOWN: Final = object()
"""Stands for an absent value."""


def origins(view: Mapping[str, Any], config: Mapping[str, Any], source: SourceMap) -> dict[FieldPath, str]:
    """Returns the origin of each value of `view` by path: a position, a default, or `derived`.

    `config` is the normalised config written by the user, and `source` locates its fields.
    """
    origin_by_path: dict[FieldPath, str] = {}
    for path, leaf in leaves({key: section for key, section in view.items() if key != "derived"}):
        origin_by_path[path] = _written(path, leaf, config, source) or _unwritten(path, leaf, view)
    return {**origin_by_path, ("derived",): "follows from the rest"}


def _written(path: FieldPath, leaf: Any, config: Mapping[str, Any], source: SourceMap) -> str | None:
    """Returns the position setting the value, and the text set if different from the value."""
    for field_path in _setting_paths(path):
        if field_path == ("checkpoint_root_dir",) and not source.has(field_path):
            continue  # the client writes it into every file
        submitted = _at(config, field_path)
        if submitted is _UNKNOWN or (submitted is None and leaf is not None) or not source.has(field_path):
            continue
        location = _position_text(source.locate(field_path))
        if field_path in source.variables:
            location = f"environment {source.variables[field_path]}, {location}"
        same = submitted == leaf or isinstance(submitted, dict | list) or isinstance(leaf, dict | list)
        return location if same else f"{location} says {submitted}"
    return None


def _setting_paths(path: FieldPath) -> Iterator[FieldPath]:
    """Yields the fields able to set the value, nearest first: the stage's field, the global field, then aliases."""
    prefix: FieldPath = path[:2] if path[0] == "stages" else ()
    global_path = path[len(prefix) :]
    candidates = [global_path]
    for field, aliases in _ALIASES:
        if global_path[: len(field)] == field:
            candidates += [(*alias, *global_path[len(field) :]) for alias in aliases]
    if matches(_TASKSETS, global_path[:3]) and len(global_path) > 3:
        candidates += _INHERITED.get(str(global_path[-1]), ())
    for candidate in candidates:
        if prefix:
            yield (*prefix, *candidate)
        yield candidate


def _at(config: Any, path: FieldPath) -> Any:
    """Returns the value at a path; `_UNKNOWN` if absent."""
    for key in path:
        if isinstance(config, dict) and str(key) in config:
            config = config[str(key)]
        elif isinstance(config, list) and isinstance(key, int) and key < len(config):
            config = config[key]
        else:
            return _UNKNOWN
    return config


def _position_text(position: SourcePlace | None) -> str:
    """Returns file and line of a position as text; the file alone for line 0, "the file" without a position."""
    if position is None:
        return "the file"
    return f"{position.origin}:{position.line}" if position.line else position.origin


def _unwritten(path: FieldPath, leaf: Any, view: Mapping[str, Any]) -> str:
    """Returns the rule behind a value not written by the user."""
    global_path = path[2:] if path[0] == "stages" else path
    if global_path[0] == "algorithm" and global_path[:2] != ("algorithm", "optimizer"):
        return _of_algorithm(path, global_path, view)
    for depth, key in enumerate(global_path[:-1]):
        if key in _RECEIVERS:
            receiver = _at(view, (*path[: len(path) - len(global_path) + depth], _RECEIVERS[str(key)]))
            return f"default of {receiver}" if isinstance(receiver, str) else "default"
        if str(key).endswith("_args"):
            return "default"
    default = _default(global_path, view)
    return "default" if default is not _UNKNOWN and default == leaf else "derived"


def _of_algorithm(path: FieldPath, global_path: FieldPath, view: Mapping[str, Any]) -> str:
    """Returns the rule behind a default of the algorithm."""
    section = path[: len(path) - len(global_path) + 1]
    kind = _at(view, (*section, "algorithm_type"))
    if global_path[1] == "algorithm_type":
        return "default"
    name = str(global_path[1])
    if name.endswith("_args") and len(global_path) > 2:
        receiver = _at(view, (*section, name.removesuffix("_args")))
        return f"default of {kind}" if receiver in (_UNKNOWN, kind) else f"default of {receiver} in {kind}"
    return "default" if _default(global_path, view) not in (None, _UNKNOWN) else f"default of {kind}"


def _default(path: FieldPath, view: Mapping[str, Any]) -> Any:
    """Returns the schema's default of a field; `_UNKNOWN` if there is none."""
    kind: Any = Experiment
    for depth, key in enumerate(path):
        if path[:depth] == ("policy",):
            kind = POLICY_KINDS.get(str((view.get("policy") or {}).get("kind")), POLICY_KINDS["plugin"])
        if isinstance(key, int):
            continue
        if not (isinstance(kind, type) and issubclass(kind, Section)) or key not in kind.model_fields:
            return _UNKNOWN
        field = kind.model_fields[key]
        if depth == len(path) - 1:
            return _UNKNOWN if field.is_required() else field.get_default(call_default_factory=True)
        kind = _section_in(field.annotation)
    return _UNKNOWN


def _section_in(annotation: Any) -> Any:
    """Returns the section contained in a field, directly or in a list; None if there is none."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    for argument in get_args(annotation) if get_origin(annotation) is not dict else ():
        if (section := _section_in(argument)) is not None:
            return section
    return None


def submitted_source(config: Mapping[str, Any], flags: Iterable[str] = ()) -> SourceMap:
    """Returns the origins in a submitted experiment: `-s` for the fields set by flags, `the file` for all others.

    Line numbers stay with the client; the log has the contents of the file alone.
    """
    source = SourceMap("the file")
    for path, _ in leaves(dict(config)):
        for length in range(1, len(path) + 1):
            source.values.setdefault(path[:length], SourcePlace("the file"))
    for flag in flags:
        if (field := parse(flag)) is not None:
            below = [path for path in source.values if path[: len(field)] == field]
            source.values |= dict.fromkeys([field, *below], SourcePlace("-s"))
    return source

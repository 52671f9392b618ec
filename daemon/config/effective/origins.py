"""`origins` says of each value of an effective experiment where it comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, get_args, get_origin

from rftd.daemon.config.field_path import FieldPath, matches
from rftd.daemon.config.resolve.verl import CONTENTS, STANDS_FOR
from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.schema.policy import POLICY_KINDS
from rftd.daemon.config.schema.section import Section
from rftd.daemon.config.source import SourceMap, SourcePlace


def _below_trainer(key: FieldPath) -> tuple[FieldPath, ...]:
    """The places of a key of veRL's tree, whose first level a file may leave out."""
    return ("trainer", "trainer_config", *key), ("trainer", "trainer_config", *key[1:])


_TASKSETS: Final[FieldPath] = ("buffer", "explorer_input", "*")
_INPUT: Final[FieldPath] = ("buffer", "explorer_input")
_SAMPLED: Final = ("temperature", "top_p", "top_k", "repetition_penalty")
_SAID: Final[tuple[tuple[FieldPath, tuple[FieldPath, ...]], ...]] = (
    (("buffer", "explorer_input", "taskset"), ((*_INPUT, "tasksets", 0),)),
    (("buffer", "total_steps"), (("trainer", "total_steps"),)),
    (("trainer", "grad_clip"), (("algorithm", "optimizer", "clip_grad"),)),
    (("algorithm", "optimizer", "clip_grad"), (("trainer", "grad_clip"),)),
    *((field, _below_trainer(key)) for key, field in STANDS_FOR.items()),
    *((("algorithm", "optimizer", "clip_grad"), _below_trainer(key)) for key in STANDS_FOR if key[-1] == "grad_clip"),
    *((("trainer", "save_hf_checkpoint"), _below_trainer(key)) for key in CONTENTS),
)
"""Fields, or sections, whose values a file may say in another place as well."""
_BESIDE: Final[Mapping[str, tuple[FieldPath, ...]]] = {
    "default_workflow_type": ((*_INPUT, "default_workflow_type"),),
    "default_reward_fn_type": ((*_INPUT, "default_reward_fn_type"),),
    **{name: (("explorer", "rollout_model", name), ("model", name)) for name in _SAMPLED},
    "max_tokens": (("model", "max_response_tokens"),),
    "min_tokens": (("model", "min_response_tokens"),),
    **{name: ((*_INPUT, name),) for name in ("system_prompt", "reply_prefix")},
}
"""Fields of a taskset that take what other sections say."""
_TAKERS: Final = {
    "extra_engine_args": "engine_type",
    "workflow_args": "default_workflow_type",
    "reward_fn_args": "default_reward_fn_type",
}
"""Arguments, and the field beside them that names who takes them."""
_UNKNOWN: Final = object()


def origins(view: Mapping[str, Any], config: Mapping[str, Any], source: SourceMap) -> dict[FieldPath, str]:
    """The origin of each value of `view`, by its path: a place, a default, or `derived`.

    `config` is what the user wrote, normalised, and `source` where it stands.
    """
    found: dict[FieldPath, str] = {}
    for path, value in _leaves({key: each for key, each in view.items() if key != "derived"}, ()):
        found[path] = _written(path, value, config, source) or _unwritten(path, value, view)
    return {**found, ("derived",): "follows from the rest"}


def _leaves(node: Any, path: FieldPath) -> Iterator[tuple[FieldPath, Any]]:
    if isinstance(node, dict) and node:
        for key, value in node.items():
            yield from _leaves(value, (*path, key))
    elif isinstance(node, list) and any(isinstance(item, dict) for item in node):
        for index, item in enumerate(node):
            yield from _leaves(item, (*path, index))
    else:
        yield path, node


def _written(path: FieldPath, value: Any, config: Mapping[str, Any], source: SourceMap) -> str | None:
    """The place that says the value, and what it says if that is something else."""
    for own in _places(path):
        if own == ("checkpoint_root_dir",) and not source.has(own):
            continue  # the client writes it into every file
        given = _at(config, own)
        if given is _UNKNOWN or (given is None and value is not None) or not source.has(own):
            continue
        place = _shown(source.locate(own))
        if own in source.variables:
            place = f"environment {source.variables[own]}, {place}"
        same = given == value or isinstance(given, dict | list) or isinstance(value, dict | list)
        return place if same else f"{place} says {given}"
    return None


def _places(path: FieldPath) -> Iterator[FieldPath]:
    """The fields that may say the value, the nearest first: a stage's own, the global one, and others of the same."""
    prefix: FieldPath = path[:2] if path[0] == "stages" else ()
    own = path[len(prefix) :]
    others = [own]
    for field, places in _SAID:
        if own[: len(field)] == field:
            others += [(*place, *own[len(field) :]) for place in places]
    if matches(_TASKSETS, own[:3]) and len(own) > 3:
        others += _BESIDE.get(str(own[-1]), ())
    for each in others:
        if prefix:
            yield (*prefix, *each)
        yield each


def _at(config: Any, path: FieldPath) -> Any:
    for part in path:
        if isinstance(config, dict) and str(part) in config:
            config = config[str(part)]
        elif isinstance(config, list) and isinstance(part, int) and part < len(config):
            config = config[part]
        else:
            return _UNKNOWN
    return config


def _shown(place: SourcePlace | None) -> str:
    if place is None:
        return "the file"
    return f"{place.origin}:{place.line}" if place.line else place.origin


def _unwritten(path: FieldPath, value: Any, view: Mapping[str, Any]) -> str:
    """The rule that gave a value which nobody wrote."""
    own = path[2:] if path[0] == "stages" else path
    if own[0] == "algorithm" and own[:2] != ("algorithm", "optimizer"):
        return _of_algorithm(path, own, view)
    for place, part in enumerate(own[:-1]):
        if part in _TAKERS:
            taker = _at(view, (*path[: len(path) - len(own) + place], _TAKERS[str(part)]))
            return f"default of {taker}" if isinstance(taker, str) else "default"
        if str(part).endswith("_args"):
            return "default"
    default = _default(own, view)
    return "default" if default is not _UNKNOWN and default == value else "derived"


def _of_algorithm(path: FieldPath, own: FieldPath, view: Mapping[str, Any]) -> str:
    section = path[: len(path) - len(own) + 1]
    kind = _at(view, (*section, "algorithm_type"))
    if own[1] == "algorithm_type":
        return "default"
    name = str(own[1])
    if name.endswith("_args") and len(own) > 2:
        taker = _at(view, (*section, name.removesuffix("_args")))
        return f"default of {kind}" if taker in (_UNKNOWN, kind) else f"default of {taker} in {kind}"
    return "default" if _default(own, view) not in (None, _UNKNOWN) else f"default of {kind}"


def _default(path: FieldPath, view: Mapping[str, Any]) -> Any:
    """The default that the schema has for a field; `_UNKNOWN` if it has none."""
    kind: Any = Experiment
    for place, part in enumerate(path):
        if path[:place] == ("policy",):
            kind = POLICY_KINDS.get(str((view.get("policy") or {}).get("kind")), POLICY_KINDS["plugin"])
        if isinstance(part, int):
            continue
        if not (isinstance(kind, type) and issubclass(kind, Section)) or part not in kind.model_fields:
            return _UNKNOWN
        field = kind.model_fields[part]
        if place == len(path) - 1:
            return _UNKNOWN if field.is_required() else field.get_default(call_default_factory=True)
        kind = _section_in(field.annotation)
    return _UNKNOWN


def _section_in(annotation: Any) -> Any:
    """The section that a field holds, by itself or in a list; None if it holds none."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    for part in get_args(annotation) if get_origin(annotation) is not dict else ():
        if (found := _section_in(part)) is not None:
            return found
    return None

"""Stages: the global sections with the stage's own laid over them, deep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from rftd.daemon.config.field_path import FieldPath
from rftd.daemon.config.schema.experiment import Experiment

_SECTIONS: Final = ("mode", "algorithm", "buffer", "data_processor", "explorer", "trainer", "policy")
_OF_THE_TYPE: Final = frozenset({"repeat_times", "sample_strategy", "loss_agg_mode", "rollout_correction"})
_REPLACES: Final = (
    (("buffer",), "total_epochs", "total_steps"),
    (("buffer", "explorer_input"), "taskset", "tasksets"),
    (("buffer", "explorer_input"), "tasksets", "taskset"),
)
"""Where a stage gives the first, an inherited second would contradict or silence it."""

SINGLE: Final = "main"
"""The stage of a file without `stages`."""


@dataclass(frozen=True, slots=True)
class StageConfig:
    """One stage as an experiment of its own."""

    name: str
    prefix: FieldPath
    """Where the stage stands in the file; () without `stages`."""
    experiment: Experiment


def stage_configs(config: dict[str, Any]) -> list[StageConfig]:
    """The stages of a valid, normalised file, in order."""
    stages = config.get("stages") or []
    whole = {key: value for key, value in config.items() if key != "stages"}
    if not stages:
        return [StageConfig(SINGLE, (), Experiment.model_validate(whole))]
    result: list[StageConfig] = []
    for index, stage in enumerate(stages):
        merged = dict(whole)
        for name in _SECTIONS:
            if stage.get(name) is not None:
                inherited = _inherit(name, whole.get(name), stage)
                merged[name] = _overlay(inherited, stage[name])
        result.append(StageConfig(stage["stage_name"], ("stages", index), Experiment.model_validate(merged)))
    return result


def _inherit(name: str, section: Any, stage: dict[str, Any]) -> Any:
    """The global section without what makes no sense in this stage."""
    if not isinstance(section, dict):
        return section
    if name == "algorithm":
        kind = stage["algorithm"].get("algorithm_type")
        if kind is not None and kind != section.get("algorithm_type"):
            return {key: value for key, value in section.items() if not _belongs_to_type(key)}
        return {key: value for key, value in section.items() if not _belongs_to_another(key, section, stage[name])}
    if name == "policy" and stage["policy"].get("kind", section.get("kind")) != section.get("kind"):
        return {}
    for path, given, silenced in _REPLACES:
        if path[0] == name and given in _at(stage, path) and silenced not in _at(stage, path):
            section = _without(section, (*path[1:], silenced))
    return section


def _belongs_to_type(key: str) -> bool:
    return key in _OF_THE_TYPE or "_fn" in key or key.endswith("_args")


def _belongs_to_another(key: str, section: dict[str, Any], own: dict[str, Any]) -> bool:
    """True of arguments of a part or a strategy in whose place the stage names another one."""
    taker = key.removesuffix("_args")
    return taker != key and own.get(taker) is not None and own[taker] != section.get(taker)


def _at(tree: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    for part in path:
        below = tree.get(part)
        if not isinstance(below, dict):
            return {}
        tree = below
    return tree


def _without(tree: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    head, *rest = path
    if not rest:
        return {key: value for key, value in tree.items() if key != head}
    below = tree.get(head)
    return {**tree, head: _without(below, tuple(rest))} if isinstance(below, dict) else tree


def _overlay(below: Any, above: Any) -> Any:
    """Mappings merge, everything else is replaced."""
    if isinstance(below, dict) and isinstance(above, dict):
        return {**below, **{key: _overlay(below.get(key), value) for key, value in above.items()}}
    return above

"""Stages: the stage's sections merged deeply over the global sections, and settings common to all stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from rftd.daemon.config.field_path import FieldPath
from rftd.daemon.config.issue import Notes
from rftd.daemon.config.resolve.explorer import ROLLOUT_ARGS
from rftd.daemon.config.resolve.trainer import TRAINER_ARGS
from rftd.daemon.config.schema.experiment import Experiment
from rftd.streams.spec.engines import EngineNeeds
from rftd.streams.spec.spec import StageSpec
from rftd.workers.generation import engine_registry as rollout_engines
from rftd.workers.learning import engine_registry as trainer_engines

_TASK_PIPELINE: Final = ("data_processor", "task_pipeline")
"""Path of the task pipeline's section."""
_SECTIONS: Final = ("mode", "algorithm", "buffer", "data_processor", "explorer", "trainer", "policy")
"""Sections that a stage may override."""
_TYPE_SPECIFIC_FIELDS: Final = frozenset({"repeat_times", "sample_strategy", "loss_agg_mode", "rollout_correction"})
"""Fields of `algorithm` not inherited by a stage with another algorithm."""
_REPLACES: Final = (
    (("buffer",), "total_epochs", "total_steps"),
    (("buffer", "explorer_input"), "taskset", "tasksets"),
    (("buffer", "explorer_input"), "tasksets", "taskset"),
)
"""Pairs of fields: if a stage sets the first, an inherited second field is ignored, because it would contradict the
stage.
"""

SINGLE: Final = "main"
"""Name of the only stage in a file without `stages`."""
_ROLLOUT: Final[Mapping[str, FieldPath]] = {
    "engine": ("explorer", "rollout_model", "engine_type"),
    "dtype": ("explorer", "rollout_model", "dtype"),
    "threads": (*ROLLOUT_ARGS, "threads"),
    "eval_engine": ("explorer", "eval_engine"),
    "environment_values": ("explorer", "env_vars"),
}
"""Fields of settings that must be equal in all stages."""
_TEMPLATE: Final = ("chat_template", "enable_thinking")
"""Fields of the model and of `explorer.rollout_model` used to open the explorers' tokenizer."""


# Values chosen for a stage depend on these and on the host, equal for all stages.
_NEEDS: Final = tuple(sorted(set(EngineNeeds.__struct_fields__) - {"device", "devices", "start_timeout_s"}))
"""Requirements of the engine that must be equal in all stages."""


@dataclass(frozen=True, slots=True)
class StageConfig:
    """One stage as a separate, valid experiment: the global sections with the stage's own merged over them."""

    name: str
    """Name of the stage."""
    prefix: FieldPath
    """Path of the stage in the file; () without `stages`."""
    experiment: Experiment
    """The experiment as if the stage were its only one."""


@dataclass(frozen=True, slots=True)
class StageTree:
    """One stage as a separate file, in plain data as written by the user."""

    name: str
    """Name of the stage."""
    prefix: FieldPath
    """Path of the stage in the file; () without `stages`."""
    tree: dict[str, Any]
    """The file as if the stage were its only one."""


def stage_trees(config: Mapping[str, Any]) -> list[StageTree]:
    """Returns the stages of a normalised file in order, each with inherited settings."""
    stages = config.get("stages") or []
    # The tree is merged and validated again, not the models: models contain values for fields not written by the user,
    # hiding the inherited ones.
    whole = {key: section for key, section in config.items() if key != "stages"}
    if not stages:
        return [StageTree(SINGLE, (), whole)]
    trees: list[StageTree] = []
    for index, stage in enumerate(stages):
        merged = dict(whole)
        for name in _SECTIONS:
            if stage.get(name) is not None:
                inherited = _inherit(name, whole.get(name), stage)
                merged[name] = _overlay(inherited, stage[name])
        if str(merged.get("mode")).lower() == "train" and not _at(stage, _TASK_PIPELINE):
            merged = _without(merged, _TASK_PIPELINE)  # the file's own pipeline makes the tasks of exploring stages
        trees.append(StageTree(stage["stage_name"], ("stages", index), merged))
    return trees


def stage_configs(config: Mapping[str, Any]) -> list[StageConfig]:
    """Returns the stages of a valid, normalised file, in order."""
    trees = stage_trees(config)
    return [
        StageConfig(stage_tree.name, stage_tree.prefix, Experiment.model_validate(stage_tree.tree))
        for stage_tree in trees
    ]


def _inherit(name: str, section: Any, stage: dict[str, Any]) -> Any:
    """Returns the global section without settings meaningless in this stage."""
    if not isinstance(section, dict):
        return section
    if name == "algorithm":
        kind = stage["algorithm"].get("algorithm_type")
        # Parts and arguments of one algorithm are wrong for another: only independent settings, such as the optimizer,
        # are inherited.
        if kind is not None and kind != section.get("algorithm_type"):
            return {key: setting for key, setting in section.items() if not _belongs_to_type(key)}
        return {key: setting for key, setting in section.items() if not _belongs_to_another(key, section, stage[name])}
    if name == "policy" and stage["policy"].get("kind", section.get("kind")) != section.get("kind"):
        return {}
    for path, set_field, silenced in _REPLACES:
        if path[0] == name and set_field in _at(stage, path) and silenced not in _at(stage, path):
            section = _without(section, (*path[1:], silenced))
    return section


def _belongs_to_type(key: str) -> bool:
    """True for a field whose default depends on the algorithm."""
    return key in _TYPE_SPECIFIC_FIELDS or "_fn" in key or key.endswith("_args")


def _belongs_to_another(key: str, section: dict[str, Any], stage_section: dict[str, Any]) -> bool:
    """True for arguments of a part or a strategy replaced by another one in the stage."""
    # `policy_loss_fn_args` belongs to `policy_loss_fn`: with another loss in the stage the arguments would be refused,
    # or would mean something else.
    part_name = key.removesuffix("_args")
    return (
        part_name != key
        and stage_section.get(part_name) is not None
        and stage_section[part_name] != section.get(part_name)
    )


def _at(tree: Mapping[str, Any], path: tuple[str, ...]) -> Mapping[str, Any]:
    """Returns the mapping at a path; empty if absent."""
    for key in path:
        below = tree.get(key)
        if not isinstance(below, dict):
            return {}
        tree = below
    return tree


def _without(tree: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """Returns a copy of a tree without the field at a path."""
    head, *remaining = path
    if not remaining:
        return {key: child for key, child in tree.items() if key != head}
    below = tree.get(head)
    return {**tree, head: _without(below, tuple(remaining))} if isinstance(below, dict) else tree


def _overlay(below: Any, above: Any) -> Any:
    """Merges `above` over `below`: mappings merge, everything else is replaced."""
    if isinstance(below, dict) and isinstance(above, dict):
        return {**below, **{key: _overlay(below.get(key), child) for key, child in above.items()}}
    return above


def check_against_first(stage: StageSpec, before: Sequence[StageSpec], notes: Notes) -> None:
    """Adds an issue for each setting of `stage` that differs from the stages `before` it, where all stages
    must agree.
    """
    if before:
        first = before[0]
        if stage.trainer.engine != first.trainer.engine:
            _refuse(("trainer", "trainer_type"), stage.trainer.engine, first.trainer.engine, first, notes)
        names = trainer_engines.opened_with(first.trainer.engine)
        kind = trainer_engines.arguments_of(first.trainer.engine)
        _compare(stage.trainer.engine_args, first.trainer.engine_args, kind, names, TRAINER_ARGS, first, notes)
    if stage.kind == "train":
        return
    exploring = next((earlier for earlier in before if earlier.kind != "train"), None)
    if exploring is None:
        return
    for name, path in _ROLLOUT.items():
        mine = getattr(stage.rollout, name)
        theirs = getattr(exploring.rollout, name)
        if mine != theirs:
            _refuse(path, mine, theirs, exploring, notes)
    for name in _TEMPLATE:
        if (mine := getattr(stage.model, name)) != (theirs := getattr(exploring.model, name)):
            _refuse(("explorer", "rollout_model", name), mine, theirs, exploring, notes)
    for name in _NEEDS:
        mine = getattr(stage.rollout.needs, name)
        theirs = getattr(exploring.rollout.needs, name)
        if mine != theirs:
            _refuse(("explorer", "rollout_model", name), mine, theirs, exploring, notes)
    kind = rollout_engines.arguments_of(exploring.rollout.engine)
    # Arguments of a third-party engine, not imported here, are compared literally.
    argument_names = {*stage.rollout.engine_args, *exploring.rollout.engine_args}
    names = kind.__struct_fields__ if kind is not None else tuple(sorted(argument_names))
    _compare(stage.rollout.engine_args, exploring.rollout.engine_args, kind, names, ROLLOUT_ARGS, exploring, notes)


def with_one_trainer(stages: Sequence[StageSpec]) -> tuple[StageSpec, ...]:
    """Returns the stages with an equal number of GPUs for the trainer: the smallest left by any stage's explorers.

    One trainer process serves all stages.
    """
    trainer_gpus = min((stage.trainer.devices for stage in stages if stage.trainer.devices), default=0)
    if not trainer_gpus:
        return tuple(stages)
    return tuple(
        stage if stage.kind == "explore" else replace(stage, trainer=replace(stage.trainer, devices=trainer_gpus))
        for stage in stages
    )


def _compare(
    mine: Mapping[str, Any],
    theirs: Mapping[str, Any],
    kind: type[msgspec.Struct] | None,
    names: Sequence[str],
    path: FieldPath,
    first: StageSpec,
    notes: Notes,
) -> None:
    """Compares arguments by name; an unset argument has its default."""
    # A written default equals an unset argument.
    defaults = {field.name: field.default for field in msgspec.structs.fields(kind)} if kind is not None else {}
    for name in names:
        default = defaults.get(name)
        if mine.get(name, default) != theirs.get(name, default):
            _refuse((*path, name), mine.get(name, default), theirs.get(name, default), first, notes)


def _refuse(path: FieldPath, mine: Any, theirs: Any, first: StageSpec, notes: Notes) -> None:
    """Adds an issue for a setting that differs from the first stage's."""
    problem = f"is {mine!r} here and {theirs!r} in stage {first.name!r}, but one engine serves all stages"
    notes.wrong(path, problem, "write it only in the global section, or submit the stages as separate experiments")

"""Stages: the global sections with the stage's own laid over them, deep, and what every stage must share."""

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
from rftd.streams.spec.engine_needs import EngineNeeds
from rftd.streams.spec.spec import StageSpec
from rftd.workers.generation import engine_registry as rollout_engines
from rftd.workers.learning import engine_registry as trainer_engines

_SECTIONS: Final = ("mode", "algorithm", "buffer", "data_processor", "explorer", "trainer", "policy")
_OF_THE_TYPE: Final = frozenset({"repeat_times", "sample_strategy", "loss_agg_mode", "rollout_correction"})
_REPLACES: Final = (
    (("buffer",), "total_epochs", "total_steps"),
    (("buffer", "explorer_input"), "taskset", "tasksets"),
    (("buffer", "explorer_input"), "tasksets", "taskset"),
)
"""Pairs of fields of a section: where a stage gives the first, an inherited second would contradict or silence it."""

SINGLE: Final = "main"
"""The stage of a file without `stages`."""
_ROLLOUT: Final[Mapping[str, FieldPath]] = {
    "engine": ("explorer", "rollout_model", "engine_type"),
    "dtype": ("explorer", "rollout_model", "dtype"),
    "threads": (*ROLLOUT_ARGS, "threads"),
    "eval_engine": ("explorer", "eval_engine"),
    "environment_values": ("explorer", "env_vars"),
}
_TEMPLATE: Final = ("chat_template", "enable_thinking")
"""Fields of the model and of `explorer.rollout_model` that the tokenizer of the explorers is opened with."""


# What is chosen for a stage follows from these and from the host, which is the same for all of them.
_NEEDS: Final = tuple(sorted(set(EngineNeeds.__struct_fields__) - {"device", "devices", "start_timeout_s"}))


@dataclass(frozen=True, slots=True)
class StageConfig:
    """A stage as an experiment of its own."""

    name: str
    prefix: FieldPath
    """The stage's place in the file; () without `stages`."""
    experiment: Experiment


@dataclass(frozen=True, slots=True)
class StageTree:
    """A stage as a file of its own, as the user wrote it: plain data."""

    name: str
    prefix: FieldPath
    """The stage's place in the file; () without `stages`."""
    tree: dict[str, Any]


def stage_trees(config: Mapping[str, Any]) -> list[StageTree]:
    """The stages of a normalised file, in order, each with what it inherits."""
    stages = config.get("stages") or []
    # The tree is laid over and validated anew, not the models: these have a value for what the user did not write,
    # which would hide what a stage inherits.
    whole = {key: value for key, value in config.items() if key != "stages"}
    if not stages:
        return [StageTree(SINGLE, (), whole)]
    result: list[StageTree] = []
    for index, stage in enumerate(stages):
        merged = dict(whole)
        for name in _SECTIONS:
            if stage.get(name) is not None:
                inherited = _inherit(name, whole.get(name), stage)
                merged[name] = _overlay(inherited, stage[name])
        result.append(StageTree(stage["stage_name"], ("stages", index), merged))
    return result


def stage_configs(config: Mapping[str, Any]) -> list[StageConfig]:
    """The stages of a valid, normalised file, in order."""
    trees = stage_trees(config)
    return [StageConfig(each.name, each.prefix, Experiment.model_validate(each.tree)) for each in trees]


def _inherit(name: str, section: Any, stage: dict[str, Any]) -> Any:
    """The global section without what makes no sense in this stage."""
    if not isinstance(section, dict):
        return section
    if name == "algorithm":
        kind = stage["algorithm"].get("algorithm_type")
        # The parts and arguments of one type are wrong for another: only what no type decides, such as the
        # optimizer, is inherited.
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
    # `policy_loss_fn_args` belongs to `policy_loss_fn`: with another loss in the stage they would be refused, or
    # mean something else.
    taker = key.removesuffix("_args")
    return taker != key and own.get(taker) is not None and own[taker] != section.get(taker)


def _at(tree: Mapping[str, Any], path: tuple[str, ...]) -> Mapping[str, Any]:
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
    """`above` laid over `below`: mappings merge, everything else is replaced."""
    if isinstance(below, dict) and isinstance(above, dict):
        return {**below, **{key: _overlay(below.get(key), value) for key, value in above.items()}}
    return above


def check_against_first(stage: StageSpec, before: Sequence[StageSpec], notes: Notes) -> None:
    """Refuses settings of `stage` that an earlier stage has decided otherwise."""
    if before:
        first = before[0]
        if stage.trainer.engine != first.trainer.engine:
            _refuse(("trainer", "trainer_type"), stage.trainer.engine, first.trainer.engine, first, notes)
        names = trainer_engines.opened_with(first.trainer.engine)
        kind = trainer_engines.arguments_of(first.trainer.engine)
        _compare(stage.trainer.engine_args, first.trainer.engine_args, kind, names, TRAINER_ARGS, first, notes)
    if stage.kind == "train":
        return
    exploring = next((each for each in before if each.kind != "train"), None)
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
    # Of a third party's engine, which is not imported here, what the two stages say is compared word by word.
    given = {*stage.rollout.engine_args, *exploring.rollout.engine_args}
    names = kind.__struct_fields__ if kind is not None else tuple(sorted(given))
    _compare(stage.rollout.engine_args, exploring.rollout.engine_args, kind, names, ROLLOUT_ARGS, exploring, notes)


def with_one_trainer(stages: Sequence[StageSpec]) -> tuple[StageSpec, ...]:
    """The stages, all of which train on the GPUs that explorers of any leave: there is one trainer process."""
    own = min((each.trainer.devices for each in stages if each.trainer.devices), default=0)
    if not own:
        return tuple(stages)
    return tuple(
        each if each.kind == "explore" else replace(each, trainer=replace(each.trainer, devices=own)) for each in stages
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
    """Compares arguments by name; one that is not given has its default."""
    # A stage that writes a default and one that leaves it out ask for the same.
    defaults = {field.name: field.default for field in msgspec.structs.fields(kind)} if kind is not None else {}
    for name in names:
        default = defaults.get(name)
        if mine.get(name, default) != theirs.get(name, default):
            _refuse((*path, name), mine.get(name, default), theirs.get(name, default), first, notes)


def _refuse(path: FieldPath, mine: Any, theirs: Any, first: StageSpec, notes: Notes) -> None:
    what = f"is {mine!r} here and {theirs!r} in stage {first.name!r}, and the engine is opened once for all stages"
    notes.wrong(path, what, "write it in the global section alone, or submit the stages one after another")

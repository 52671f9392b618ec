"""Every name misspelt, every value of a wrong type or size: the error has the field, its line and the right name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

import msgspec
import pytest
from pydantic.fields import FieldInfo
from synthetic.daemon.config_fields import schema_fields, with_field
from synthetic.daemon.config_mutations import Mutation, MutationScore, batched, misspelt

from rftd.daemon.config.field_path import FieldPath
from rftd.daemon.config.resolve.algorithm import STRATEGIES
from rftd.ops.errors import ConfigError
from rftd.ops.plugins import Plugins
from rftd.workers.control.policies.priorities import PRIORITIES
from rftd.workers.generation import engine_registry as rollout_engines
from rftd.workers.learning import engine_registry as trainer_engines
from rftd.workers.learning.algorithms.advantages.registry import ADVANTAGES
from rftd.workers.learning.losses.entropy_losses import ENTROPY_LOSSES
from rftd.workers.learning.losses.kl_losses import KL_LOSSES
from rftd.workers.learning.losses.registry import POLICY_LOSSES
from rftd.workers.workflows.registry import WORKFLOWS
from rftd.workers.workflows.rewards.registry import REWARDS

_TASKSET: Final[FieldPath] = ("buffer", "explorer_input", "taskset")
_REPLAY: Final[FieldPath] = ("buffer", "trainer_input", "experience_buffer", "replay_buffer")
_BASE: Final[dict[str, Any]] = {
    "checkpoint_root_dir": "/c",
    "algorithm": {"algorithm_type": "grpo", "repeat_times": 4},
    "model": {"model_path": "/m", "max_model_len": 64},
    "buffer": {
        "batch_size": 2,
        "total_steps": 6,
        "explorer_input": {"taskset": {"path": "/t.jsonl", "default_workflow_type": "math_workflow"}},
    },
}
_PARTS: Final[tuple[tuple[FieldPath, str, Plugins[Any]], ...]] = (
    (("algorithm", "advantage_fn"), "advantage_fn_args", ADVANTAGES),
    (("algorithm", "policy_loss_fn"), "policy_loss_fn_args", POLICY_LOSSES),
    (("algorithm", "kl_loss_fn"), "kl_loss_fn_args", KL_LOSSES),
    (("algorithm", "kl_penalty_fn"), "kl_penalty_fn_args", KL_LOSSES),
    (("algorithm", "entropy_loss_fn"), "entropy_loss_fn_args", ENTROPY_LOSSES),
    ((*_REPLAY, "priority_fn"), "priority_fn_args", PRIORITIES),
    ((*_TASKSET, "default_workflow_type"), "workflow_args", WORKFLOWS),
    ((*_TASKSET, "default_reward_fn_type"), "reward_fn_args", REWARDS),
)
"""Fields that name one of ours, the fields of its arguments, and its registry."""


def test_every_field_of_the_schema_misspelt_or_wrong_is_named_at_its_place() -> None:
    score = MutationScore()
    known = {each.name for each in schema_fields()}
    names: list[Mutation] = []
    values: list[Mutation] = []
    for each in schema_fields():
        if each.kind:
            continue  # of policies and corrections, whose sections follow from their kind
        path = tuple("sft" if part == "NAME" else part for part in each.path)
        wrong = misspelt(each.name)
        if wrong not in known and len(wrong) > 1:
            names.append(Mutation((*path[:-1], wrong), 1, meant=each.name))
        values += [Mutation(path, value) for value in _wrong_values(each.info)]
    for mutations in (names, values):
        for chunk in batched(mutations):
            score.add(_BASE, chunk)
    assert score.made > 700
    score.check()


def test_wrong_or_misspelt_policy_and_correction_fields_are_named_at_their_line() -> None:
    score = MutationScore()
    corrections: FieldPath = ("algorithm", "rollout_correction", "corrections")
    fields = [each for each in schema_fields() if each.kind]
    for kind in dict.fromkeys((each.path[0], each.kind) for each in fields):
        mine = [each for each in fields if (each.path[0], each.kind) == kind]
        section = mine[0].path[:-1]
        known = {each.name for each in mine} | {"max_staleness", "min_group_members", "kind"}
        base = with_field(_BASE, (*section, "kind"), mine[0].kind)
        required = [each for each in mine if each.info.is_required()]
        for each in required:
            base = with_field(base, each.path, _some(each.info.annotation))
        assert section in (("policy",), (*corrections, 0))
        wrong = {misspelt(each.name): each.name for each in mine if len(each.name) > 3}
        names = [Mutation((*section, one), 1, meant=name) for one, name in wrong.items() if one not in known]
        for chunk in batched([Mutation(each.path, value) for each in mine for value in _wrong_values(each.info)]):
            score.add(base, chunk)
        score.add(base, names)
        score.miss(base, [each.path for each in required])
    assert score.made > 90
    score.check()


def test_every_argument_of_a_selector_misspelt_is_named_at_its_place() -> None:
    score = MutationScore()
    selector = {"selector_type": "difficulty_based", "feature_keys": ["weak", "strong"]}
    base = with_field(_BASE, (*_TASKSET, "data_selector"), selector)
    for name in ("lamb", "target_reward", "do_sample"):
        path = (*_TASKSET, "data_selector", "kwargs", misspelt(name))
        score.add(base, [Mutation(path, 1, meant=name)])
    score.check()


def test_wrong_or_misspelt_monitor_arguments_are_named_at_their_line() -> None:
    score = MutationScore()
    args: FieldPath = ("monitor", "monitor_args")
    for monitor, names in {"wandb": ("base_url", "api_key"), "mlflow": ("uri", "username", "password")}.items():
        base = with_field(_BASE, ("monitor", "monitor_type"), monitor)
        score.add(base, [Mutation((*args, misspelt(name)), {"env": "X"}, meant=name) for name in names])
        score.add(base, [Mutation((*args, name), ["wrong"]) for name in names if name not in ("api_key", "password")])
    score.add(_BASE, [Mutation((*args, "usernme"), "x", meant="username")])
    assert score.made == 9
    score.check()


_SERVICE_MODEL: Final = {"name": "judge", "engine_type": "external", "model_name": "m", "base_url": "http://h/v1"}
_ADDRESSES: Final[tuple[tuple[FieldPath, dict[FieldPath, Any]], ...]] = (
    (("monitor", "monitor_args", "base_url"), {("monitor", "monitor_type"): "wandb"}),
    (("monitor", "monitor_args", "uri"), {("monitor", "monitor_type"): "mlflow"}),
    (("model", "tinker", "base_url"), {("model", "tinker", "enable"): True}),
    (
        ("explorer", "auxiliary_models", 0, "base_url"),
        {("explorer", "auxiliary_models"): [_SERVICE_MODEL]},
    ),
)
"""Fields with an address of a service, and the fields by which it acts."""


def test_every_address_of_another_scheme_or_without_a_host_is_named() -> None:
    score = MutationScore()
    for path, fields in _ADDRESSES:
        base = _BASE
        for field, setting in fields.items():
            base = with_field(base, field, setting)
        for address in ("ftp://h", "htp://h", "http://", "https:///runs", "http://h:port", "h:5000", "h"):
            score.add(base, [Mutation(path, address)])
    assert score.made == 28
    score.check()


def test_every_required_field_that_is_missing_is_named() -> None:
    score = MutationScore()
    for each in schema_fields():
        if each.kind or not each.info.is_required():
            continue
        path = tuple("sft" if part == "NAME" else part for part in each.path)
        others = [other for other in schema_fields() if other.path[:-1] == each.path[:-1] and not other.kind]
        base = _BASE
        for other in others:
            if other.info.is_required() or other is others[-1]:
                base = with_field(base, (*path[:-1], other.name), _some(other.info.annotation))
        score.miss(base, [path])
    for required in ("model.model_path", "buffer.explorer_input.taskset.path"):
        score.miss(_BASE, [tuple(required.split("."))])
    assert score.made >= 5
    score.check()


def _some(annotation: Any) -> Any:
    """A value of the type."""
    kinds = list(_kinds(annotation))
    return "x" if str in kinds else 1 if set(kinds) & {int, float} else True if bool in kinds else {}


def test_a_field_of_two_types_has_one_error(errors: Callable[..., list[str]]) -> None:
    (text,) = errors(overrides=["algorithm.rollout_correction.rollout_is_threshold=[1]"])
    assert "rollout_correction.rollout_is_threshold: expected a number or text, got a list" in text


def _wrong_values(info: FieldInfo) -> Iterator[Any]:
    """A value of another type, and one beyond each bound."""
    kinds = list(_kinds(info.annotation))
    if Any in kinds:
        return
    if not any(get_origin(kind) is list for kind in kinds):
        yield ["wrong"]
    else:
        yield {"wrong": 1}
    bounds = [mark for each in info.metadata for mark in (each.metadata if isinstance(each, FieldInfo) else (each,))]
    for mark in bounds if set(kinds) & {int, float} else ():
        for name, beyond in (("ge", -1), ("gt", 0), ("le", 1), ("lt", 0)):
            if getattr(mark, name, None) is not None:
                yield getattr(mark, name) + beyond


def _kinds(annotation: Any) -> Iterator[Any]:
    if annotation in (int, float, str, bool, Any) or get_origin(annotation) in (list, dict, Literal):
        yield annotation
    else:
        for part in get_args(annotation):
            yield from _kinds(part)


def test_every_argument_misspelt_or_of_another_type_is_named_at_its_place() -> None:
    score = MutationScore()
    for path, args, plugins in _PARTS:
        for name in plugins.ours():
            try:
                declaration = plugins.declaration(name)
            except ConfigError:  # without its extra
                continue
            if declaration is None or not declaration.kind.__struct_fields__:
                continue
            base = with_field(_BASE, path, name)
            required = {each: "x" for each in declaration.required}
            taken = set(declaration.kind.__struct_fields__)
            whole = with_field(base, (*path[:-1], args), required)
            score.miss(whole, [(*path[:-1], args, each) for each in declaration.required])
            _all_wrong(score, whole, (*path[:-1], args), declaration.kind, taken)
    engines = (("explorer", "rollout_model", "engine_type"), "extra_engine_args", rollout_engines)
    trainers = (("trainer", "trainer_type"), "engine_args", trainer_engines)
    for path, args, registry in (engines, trainers):
        for name in ("torch", "fake"):
            kind = registry.arguments_of(name)
            assert kind is not None
            at = (*path[:-1], args)
            _all_wrong(score, with_field(_BASE, path, name), at, kind, {*kind.__struct_fields__, "threads", "dtype"})
    for name, kind in STRATEGIES.items():
        base = with_field(_BASE, ("algorithm", "sample_strategy"), name)
        _all_wrong(score, base, ("algorithm", "sample_strategy_args"), kind, set(kind.__struct_fields__))
    assert score.made > 300
    score.check()


def _all_wrong(
    score: MutationScore, base: Mapping[str, Any], path: FieldPath, kind: type[msgspec.Struct], taken: set[str]
) -> None:
    wrong = {misspelt(name): name for name in kind.__struct_fields__ if len(name) > 3}
    names = [Mutation((*path, each), 1, meant=name) for each, name in wrong.items() if each not in taken]
    typed = [each.name for each in msgspec.structs.fields(kind) if not _takes_any(each.type)]
    score.add(dict(base), names)
    score.add(dict(base), [Mutation((*path, name), [["wrong"]]) for name in typed])
    for name, value in _beyond(kind):
        score.add(dict(base), [Mutation((*path, name), value)])


def _beyond(kind: type[msgspec.Struct]) -> Iterator[tuple[str, Any]]:
    """Each argument with a value beyond each of its bounds."""
    for each in msgspec.structs.fields(kind):
        for meta in _metas(get_type_hints(kind, include_extras=True)[each.name]):
            for bound, beyond in (("ge", -1), ("gt", 0), ("le", 1), ("lt", 0)):
                if (edge := getattr(meta, bound)) is not None:
                    yield each.name, edge + beyond


def _metas(annotation: Any) -> Iterator[msgspec.Meta]:
    for part in (*getattr(annotation, "__metadata__", ()), *get_args(annotation)):
        if isinstance(part, msgspec.Meta):
            yield part
        elif part is not annotation:
            yield from _metas(part)


def _takes_any(annotation: Any) -> bool:
    return annotation is Any or any(part is Any for part in get_args(annotation))


@pytest.mark.parametrize("plugins", dict.fromkeys(each for *_, each in _PARTS), ids=lambda plugins: plugins.kind)
def test_types_of_our_arguments_are_known_at_run_time(plugins: Plugins[Any]) -> None:
    """One that only a type checker knew would leave all arguments of its part unchecked, and say nothing."""
    for name in plugins.ours():
        factory = plugins.load(name)
        get_type_hints(factory.__init__ if isinstance(factory, type) else factory)

"""The guide's fields that verl has: what reaches it under its own names, what is refused, what is replaced."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from pydantic import ValidationError

from rftd.daemon.config.field_path import FieldPath, show
from rftd.daemon.config.issue import Contradiction, Issue, Notes, UnknownField, Unsupported, WrongValue
from rftd.daemon.config.resolve.megatron import STRATEGY, megatron_arguments, only_fsdp2, without_kernels
from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.schema.section import Section, as_section
from rftd.daemon.config.schema.trainer import Trainer
from rftd.daemon.config.verl.own_words import in_own_words
from rftd.daemon.config.verl.table import (
    VerlKey,
    canonical,
    engine_arguments,
    find,
    is_section,
    keys_in,
    meant,
    read_elsewhere,
    takes_no_mapping,
)
from rftd.workers.devices.host import Host

_CONFIG: Final[FieldPath] = ("trainer", "trainer_config")
_ACTOR: Final[FieldPath] = ("actor_rollout_ref", "actor")

_OPTIM: Final[FieldPath] = (*_ACTOR, "optim")
_OPTIMIZER: Final[FieldPath] = ("algorithm", "optimizer")
STANDS_FOR: Final[Mapping[FieldPath, FieldPath]] = {
    (*_OPTIM, "lr"): (*_OPTIMIZER, "lr"),
    (*_OPTIM, "lr_warmup_steps"): (*_OPTIMIZER, "lr_warmup_steps"),
    (*_OPTIM, "lr_warmup_steps_ratio"): (*_OPTIMIZER, "lr_warmup_steps_ratio"),
    (*_OPTIM, "min_lr_ratio"): (*_OPTIMIZER, "min_lr_ratio"),
    (*_OPTIM, "lr_scheduler_type"): (*_OPTIMIZER, "lr_scheduler_type"),
    (*_OPTIM, "warmup_style"): (*_OPTIMIZER, "lr_scheduler_type"),
    (*_OPTIM, "optimizer"): (*_OPTIMIZER, "optimizer_type"),
    (*_OPTIM, "betas"): (*_OPTIMIZER, "betas"),
    (*_OPTIM, "weight_decay"): (*_OPTIMIZER, "weight_decay"),
    (*_ACTOR, "grad_clip"): ("trainer", "grad_clip"),
}
"""Keys of veRL, and the fields that they stand for where these are not written."""
CONTENTS: Final = ((*_ACTOR, "checkpoint", "save_contents"), (*_ACTOR, "checkpoint", "contents"))
"""Keys of what veRL saves: they stand for `trainer.save_hf_checkpoint`."""

OWN_FIELDS: Final = {
    "max_token_len_per_gpu": "max_token_len_per_gpu",
    "use_dynamic_bsz": "use_dynamic_bsz",
    "use_remove_padding": "use_remove_padding",
    "ulysses_sequence_parallel_size": "ulysses_sequence_parallel_size",
    "param_offload": "param_offload",
    "optimizer_offload": "optimizer_offload",
    "save_strategy": "save_strategy",
}
"""Fields of `trainer`, and the arguments of the engine that they are."""

_TREE: Final = engine_arguments()
"""Fields below `trainer_config`, likewise."""
_ELSEWHERE: Final = read_elsewhere()
_UNWRAPPED: Final = ("actor", "ref", "rollout", "model")
_AROUND: Final = (
    *("project", "name", "checkpoint_root_dir", "monitor.", "cluster.", "trainer.balance_batch"),
    "explorer.rollout_model.",
)
"""Fields that change neither what is learned nor what is sampled."""
_OVERRULED: Final = ("trainer.val_before_train", "trainer.total_training_steps")
"""Keys that Trinity-RFT does not read: its own fields say so for every file, also where they are not written."""
_COUNTS: Final = ("max_token_len_per_gpu", "micro_batch_size_per_gpu", "ulysses_sequence_parallel_size")
_MEGATRON: Final = (*_ACTOR, STRATEGY)
_GONE: Final = "leave it out: the sections are actor_rollout_ref, critic and trainer"
_ON_GPUS: Final = ("param_offload", "optimizer_offload", "ref_param_offload", "activation_offload")


def check_tree(experiment: Experiment, engine: str, notes: Notes) -> None:
    """Says of each key of the tree what becomes of it with this engine, unless it acts.

    A key that veRL does not have, and a value of another type, are errors; so is what would change what is learned or
    sampled and has a place of its own here, or none. The rest is named in a warning. A value that the field here has
    as well asks for nothing, nor does veRL's default, unless the field here says something else: then a warning does.
    """
    config = experiment.trainer.trainer_config or {}
    for written, path, value in _leaves(config):
        name = ".".join(map(str, path))
        where = (*_CONFIG, *written)
        if is_section(name):
            if value is not None:
                notes.wrong(where, f"is {value!r}", "write a mapping", WrongValue)
            continue
        key = find(name)
        near = meant(name)
        if near is not None or key is None:
            fix = f"did you mean {near!r}?" if near is not None else _known_beside(name)
            notes.issues.append(Issue(where, "is no key of veRL", fix, UnknownField, at_key=True))
            continue
        known = key.name == canonical(name)
        wants = key.wrong(value) if known else None
        if wants:
            notes.wrong(where, f"is {value!r}", f"write {wants}", WrongValue)
            continue
        # Megatron's own settings are spoken of together with those of `trainer.megatron`.
        if path in _ELSEWHERE or path[:3] == _MEGATRON or (path in _TREE and engine == "verl"):
            continue
        if path in CONTENTS or (path in STANDS_FOR and value != key.default):
            continue  # it has been read, or held against the field
        ours = in_own_words(experiment, key) if known else None
        if not _asks_nothing(key, known, value) and (ours is None or value != ours):
            _idle_key(key, where, value, engine, notes)
        elif value is not None and ours is not None and value != ours:
            notes.warn(f"{show(where)} has no effect: {key.target} says {ours!r} in veRL's words")


def _known_beside(name: str) -> str:
    """The names that veRL has in the section of a key that it does not have."""
    section = name.rpartition(".")[0]
    known = keys_in(section) if section else []
    return f"leave it out; known here: {', '.join(known[:8])}" + (", ..." if len(known) > 8 else "") if known else _GONE


def _asks_nothing(key: VerlKey, known: bool, value: Any) -> bool:
    """True of veRL's default; of a key that is known by its section alone, of what switches nothing on."""
    return value in (None, "", [], {}) or (value == key.default if known else value is False)


def _idle_key(key: VerlKey, where: FieldPath, value: Any, engine: str, notes: Notes) -> None:
    """Refuses or warns of a key that nothing reads with this engine."""
    if key.argument:
        notes.warn(f"{show(where)} has no effect: it is verl's, and {engine} trains")
    elif key.fate in ("dropped", "tree"):
        notes.warn(f"{show(where)} has no effect" + (f": {key.note}" if key.note else ""))
    elif key.name in _OVERRULED:
        notes.warn(f"{show(where)} has no effect: {key.target} says it")
    elif key.target.startswith(_AROUND) or ".megatron." in key.name:
        notes.warn(f"{show(where)} has no effect: " + (f"write {key.target}" if key.target else key.note))
    else:
        fix = f"write {key.target}" + (f" ({key.note})" if key.note else "") if key.target else key.note
        notes.wrong(where, f"is {value!r}, and nothing reads it here", fix, Unsupported)


def warn_without_critic(config: Mapping[str, Any], notes: Notes) -> None:
    """Warns of keys that act on a critic, where there is none."""
    for written, path, value in _leaves(config):
        if path[0] == "critic" and path in _ELSEWHERE and value is not None:
            notes.warn(f"{show((*_CONFIG, *written))} has no effect: the algorithm has no critic")


def verl_arguments(trainer: Trainer, strategy: str, host: Host, notes: Notes) -> dict[str, Any]:
    """The arguments of the engine verl that the guide's fields give; what cannot act is warned of or refused."""
    megatron = strategy == STRATEGY
    given: dict[str, tuple[FieldPath, Any]] = {}
    for written, path, value in _leaves(trainer.trainer_config or {}):
        name = _TREE.get(path)
        if name is not None and path[:3] != _MEGATRON:
            _take(given, name, (*_CONFIG, *written), value, notes)
    for field, name in OWN_FIELDS.items():
        if field in trainer.model_fields_set:
            _take(given, name, ("trainer", field), getattr(trainer, field), notes)
    for name, value in trainer.engine_args.items():
        # An argument of the engine that the user wrote by its own name counts more than verl's.
        if name in ("use_dynamic_bsz", "micro_batch_size_per_gpu"):
            given[name] = (("trainer", "engine_args", name), value)
    _warn_of_cuts(given, notes)
    unwritten = _unwritten({*given, *trainer.engine_args}, trainer.engine_args.get("dtype"), host, megatron=megatron)
    if not megatron:
        acting = {name: value for name, (where, value) in given.items() if _acts(name, where, value, host, notes)}
        return {**unwritten, **acting}
    found = {
        name: value
        for name, (where, value) in given.items()
        if not only_fsdp2(name, where, value, notes) and _acts_with_megatron(name, where, value, host, notes)
    }
    return {**unwritten, **found, **megatron_arguments(trainer, leaves(trainer), host, notes)}


def _unwritten(written: Collection[str], dtype: str | None, host: Host, *, megatron: bool) -> dict[str, bool]:
    """veRL's own defaults of what a file leaves out, on GPUs: layers are computed again, and texts are not padded.

    flash-attn takes bfloat16 alone, so that texts are padded in float32. Where nobody has looked for GPUs, FSDP2
    computes layers again too: that it can everywhere.
    """
    if not host.seen and not megatron and "gradient_checkpointing" not in written:
        return {"gradient_checkpointing": True}
    if not host.gpus:
        return {}
    packed = without_kernels(host) is None if megatron else "flash-attn" in host.packages
    defaults = {"gradient_checkpointing": True, "use_remove_padding": packed and dtype == "bfloat16"}
    return {name: value for name, value in defaults.items() if value and name not in written}


def _acts_with_megatron(name: str, where: FieldPath, value: Any, host: Host, notes: Notes) -> bool:
    """True if the argument is to be given to the engine with Megatron's layers; else it was said why it is not."""
    if name == "use_remove_padding" and value and (why := without_kernels(host)) is not None:
        notes.warn(f"{show(where)} has no effect: texts are padded: {why}")
        return False
    if name == "gradient_checkpointing" and value and not host.gpus and host.seen:
        notes.warn(f"{show(where)} has no effect: verl trains on the CPU, where Megatron keeps every layer's states")
        return False
    return True


def _warn_of_cuts(given: Mapping[str, tuple[FieldPath, Any]], notes: Notes) -> None:
    """Warns of a way to cut micro-batches that is not taken: by tokens, unless responses are asked for and counted."""
    by_tokens, dynamic = given.get("use_dynamic_bsz", ((), True))
    counted, size = given.get("micro_batch_size_per_gpu", ((), 0))
    if not dynamic and not size:
        notes.warn(
            f"{show(by_tokens)} has no effect: nothing says how many responses a micro-batch has "
            "(ppo_micro_batch_size_per_gpu), so they are cut by tokens"
        )
    elif dynamic and size:
        notes.warn(f"{show(counted)} has no effect: use_dynamic_bsz is true, so micro-batches are cut by tokens")


def leaves(trainer: Trainer) -> list[tuple[FieldPath, FieldPath, Any]]:
    """The values of verl's own tree: where each is written below `trainer`, its name in veRL, and the value."""
    return [((*_CONFIG, *place), path, value) for place, path, value in _leaves(trainer.trainer_config or {})]


def _leaves(node: Mapping[str, Any]) -> Iterator[tuple[FieldPath, FieldPath, Any]]:
    """The values of the tree, with their places as they are written and as verl has them.

    A file may leave the level `actor_rollout_ref` out.
    """
    for path, value in _values(node, ()):
        yield path, _wrapped(path), value


def _wrapped(path: FieldPath) -> FieldPath:
    return ("actor_rollout_ref", *path) if path[0] in _UNWRAPPED else path


def _values(node: Mapping[str, Any], above: FieldPath) -> Iterator[tuple[FieldPath, Any]]:
    for key, value in node.items():
        path = (*above, key)
        if isinstance(value, Mapping) and not takes_no_mapping(".".join(map(str, _wrapped(path)))):
            yield from _values(value, path)
        else:
            yield path, value


def _take(given: dict[str, tuple[FieldPath, Any]], name: str, where: FieldPath, value: Any, notes: Notes) -> None:
    """Notes a value, checked: the schema does not look into the tree."""
    if value is None:
        return
    if name in _COUNTS or name == "fsdp_size":
        least = -1 if name == "fsdp_size" else 1
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            # The guide's default of this field of `trainer` counts as one.
            if where[0:2] == ("trainer", "ulysses_sequence_parallel_size"):
                return
            notes.wrong(where, f"is {value!r}", f"write a whole number of at least {least}", WrongValue)
            return
    elif name != "save_strategy" and not isinstance(value, bool):
        notes.wrong(where, f"is {value!r}", "write true or false", WrongValue)
        return
    if name in given and given[name][1] != value:
        notes.wrong(where, f"is {value!r}, and {show(given[name][0])} is {given[name][1]!r}", "keep one of the two")
    given[name] = (where, value)


def _acts(name: str, where: FieldPath, value: Any, host: Host, notes: Notes) -> bool:
    """True if the argument is to be given to the engine; else it was said why it is not."""
    if name in _ON_GPUS and value and not host.gpus and host.seen:
        notes.warn(f"{show(where)} has no effect: verl trains on the CPU")
        return False
    padding_free = (name == "use_remove_padding" and value) or (name == "ulysses_sequence_parallel_size" and value > 1)
    if padding_free and host.seen and "flash-attn" not in host.packages:
        notes.warn(
            f"{show(where)} has no effect: texts are padded, on one rank each: flash-attn is not installed where "
            "workers run"
        )
        return False
    return True


_BESIDE: Final[Mapping[FieldPath, FieldPath]] = {("trainer", "grad_clip"): (*_OPTIMIZER, "clip_grad")}
"""Fields that may be written in another place as well."""


def with_upstream_places(experiment: Experiment, notes: Notes) -> Experiment:
    """The experiment with each field that only veRL's tree says; a field that both say otherwise is an issue.

    What the tree has at veRL's own default asks for nothing beside a field that is written.
    """
    taken: dict[FieldPath, tuple[FieldPath, Any]] = {}
    # A default comes last: of two names of one thing the one that says something else counts.
    for where, key, value in sorted(leaves(experiment.trainer), key=lambda leaf: _is_default(leaf[1], leaf[2])):
        field = STANDS_FOR.get(key)
        if field is None or value is None or (reading := _read(experiment, field, where, value, notes)) is None:
            continue
        rival = _written(experiment, field)
        if rival is None and field in taken:
            rival = taken[field]
        if rival is None:
            taken[field] = (where, reading)
        elif rival[1] != reading and not _is_default(key, value):
            what = f"is {value!r}, and {show(rival[0])}, which is the same, is {rival[1]!r}"
            notes.wrong(where, what, "keep one of the two", Contradiction)
    experiment = _with_contents(experiment, notes)
    return _filled(experiment, {field: reading for field, (_, reading) in taken.items()})


def _with_contents(experiment: Experiment, notes: Notes) -> Experiment:
    """The experiment with whole models in its checkpoints if veRL's tree asks for them."""
    trainer = experiment.trainer
    for where, key, value in leaves(trainer):
        if key not in CONTENTS or value is None:
            continue
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            notes.wrong(where, f"is {value!r}", "write a list of texts", WrongValue)
        elif "hf_model" not in value:
            if not {"model", "optimizer", "extra"} <= set(value):
                notes.warn(f"{show(where)} has no effect: a checkpoint holds all that a restart needs")
        elif "save_hf_checkpoint" not in trainer.model_fields_set:
            trainer = trainer.model_copy(update={"save_hf_checkpoint": "always"})
        elif trainer.save_hf_checkpoint != "always":
            notes.warn(f"{show(where)} has no effect: trainer.save_hf_checkpoint is {trainer.save_hf_checkpoint}")
    return experiment.model_copy(update={"trainer": trainer})


def _read(experiment: Experiment, field: FieldPath, where: FieldPath, value: Any, notes: Notes) -> Any:
    """The value as the field holds it; None if veRL's tree may not hold it, which is said."""
    name = str(field[-1])
    if name == "lr_warmup_steps" and value in (0, -1):
        return -1  # veRL takes the ratio then
    try:
        return getattr(type(_section(experiment, field)).model_validate({name: value}), name)
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        notes.wrong(where, f"is {value!r}, and stands for {show(field)}: {reason}", f"write {show(field)}", WrongValue)
        return None


def _is_default(key: FieldPath, value: Any) -> bool:
    row = find(".".join(map(str, key)))
    return row is not None and row.default == value


def _written(experiment: Experiment, field: FieldPath) -> tuple[FieldPath, Any] | None:
    """The place that says the field in words of this file, with its value."""
    for place in (field, _BESIDE.get(field, field)):
        section = _section(experiment, place)
        name = str(place[-1])
        if name in section.model_fields_set:
            return place, getattr(section, name)
    return None


def _section(experiment: Experiment, field: FieldPath) -> Section:
    return experiment.trainer if field[0] == "trainer" else as_section(experiment.algorithm.optimizer)


def _filled(experiment: Experiment, values: Mapping[FieldPath, Any]) -> Experiment:
    """The experiment with these fields, as if they had been written."""
    optimizer = {str(field[-1]): value for field, value in values.items() if field[0] == "algorithm"}
    trainer = {str(field[-1]): value for field, value in values.items() if field[0] == "trainer"}
    if optimizer:
        whole = as_section(experiment.algorithm.optimizer).model_copy(update=optimizer)
        algorithm = experiment.algorithm.model_copy(update={"optimizer": whole})
        experiment = experiment.model_copy(update={"algorithm": algorithm})
    if trainer:
        experiment = experiment.model_copy(update={"trainer": experiment.trainer.model_copy(update=trainer)})
    return experiment

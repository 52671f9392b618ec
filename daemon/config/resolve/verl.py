"""Settings of the engine verl: its arguments from fields of `trainer` and from veRL's own tree below
`trainer.trainer_config`.

Settings without a counterpart or without effect are refused or reported by a warning.
"""

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
from rftd.daemon.config.verl.key_values import verl_value
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

_TREE_PATH: Final[FieldPath] = ("trainer", "trainer_config")
"""Path of veRL's tree in the file."""
_ACTOR_KEY: Final[FieldPath] = ("actor_rollout_ref", "actor")
"""Path of the actor's section in veRL's tree."""

_OPTIM_KEY: Final[FieldPath] = (*_ACTOR_KEY, "optim")
"""Path of the optimizer's section in veRL's tree."""
_OPTIMIZER_PATH: Final[FieldPath] = ("algorithm", "optimizer")
"""Path of the optimizer's section in the file."""
FIELDS_BY_VERL_KEY: Final[Mapping[FieldPath, FieldPath]] = {
    (*_OPTIM_KEY, "lr"): (*_OPTIMIZER_PATH, "lr"),
    (*_OPTIM_KEY, "lr_warmup_steps"): (*_OPTIMIZER_PATH, "lr_warmup_steps"),
    (*_OPTIM_KEY, "lr_warmup_steps_ratio"): (*_OPTIMIZER_PATH, "lr_warmup_steps_ratio"),
    (*_OPTIM_KEY, "min_lr_ratio"): (*_OPTIMIZER_PATH, "min_lr_ratio"),
    (*_OPTIM_KEY, "lr_scheduler_type"): (*_OPTIMIZER_PATH, "lr_scheduler_type"),
    (*_OPTIM_KEY, "warmup_style"): (*_OPTIMIZER_PATH, "lr_scheduler_type"),
    (*_OPTIM_KEY, "optimizer"): (*_OPTIMIZER_PATH, "optimizer_type"),
    (*_OPTIM_KEY, "betas"): (*_OPTIMIZER_PATH, "betas"),
    (*_OPTIM_KEY, "weight_decay"): (*_OPTIMIZER_PATH, "weight_decay"),
    (*_ACTOR_KEY, "grad_clip"): ("trainer", "grad_clip"),
}
"""Path of the file's field by the key of veRL that sets it, if the file does not write the field itself."""
CHECKPOINT_CONTENTS_KEYS: Final = (
    (*_ACTOR_KEY, "checkpoint", "save_contents"),
    (*_ACTOR_KEY, "checkpoint", "contents"),
)
"""Keys of veRL for the contents of checkpoints, which set `trainer.save_hf_checkpoint`."""

ARGUMENTS_BY_TRAINER_FIELD: Final = {
    "max_token_len_per_gpu": "max_token_len_per_gpu",
    "use_dynamic_bsz": "use_dynamic_bsz",
    "use_remove_padding": "use_remove_padding",
    "ulysses_sequence_parallel_size": "ulysses_sequence_parallel_size",
    "param_offload": "param_offload",
    "optimizer_offload": "optimizer_offload",
    "save_strategy": "save_strategy",
}
"""Arguments of the engine by the field of `trainer` that sets them."""

_ARGUMENTS_BY_VERL_KEY: Final = engine_arguments()
"""Arguments of the engine by the key of veRL that sets them."""
_KEYS_READ_ELSEWHERE: Final = read_elsewhere()
"""Keys of veRL converted by other modules, such as those of the critic."""
_TOP_SECTIONS: Final = ("actor", "ref", "rollout", "model")
"""Sections of `actor_rollout_ref` that a file may write without that level."""
_FIELDS_WITHOUT_INFLUENCE: Final = (
    *("project", "name", "checkpoint_root_dir", "monitor.", "cluster.", "trainer.balance_batch"),
    "explorer.rollout_model.",
)
"""Beginnings of paths of fields without influence on learning and sampling."""
_KEYS_OVERRULED: Final = ("trainer.val_before_train", "trainer.total_training_steps")
"""Keys that Trinity-RFT does not read, because its own fields apply even if unset."""
_COUNT_ARGUMENTS: Final = ("max_token_len_per_gpu", "micro_batch_size_per_gpu", "ulysses_sequence_parallel_size")
"""Arguments that are whole numbers of at least 1."""
_MEGATRON_KEY: Final = (*_ACTOR_KEY, STRATEGY)
"""Path of Megatron's section in veRL's tree."""
_SECTIONS_ADVICE: Final = "leave it out: the sections are actor_rollout_ref, critic and trainer"
"""Advice for a key outside of veRL's sections."""
_GPU_ARGUMENTS: Final = ("param_offload", "optimizer_offload", "ref_param_offload", "activation_offload")
"""Arguments without effect on a CPU."""


def check_tree(experiment: Experiment, engine: str, notes: Notes) -> None:
    """Adds an issue or a warning for keys of veRL's tree in the file that this engine does not use as written.

    Issues: a key unknown to veRL; a value of another type; a key of learning or sampling that another field sets here,
    or that has no counterpart. Warnings: other keys. Without consequence are keys read by the engine or by other
    checks, values equal to the field's here, and veRL's defaults; a default that differs from the field's value causes
    a warning.
    """
    config = experiment.trainer.trainer_config or {}
    for written_path, path, setting in _leaves_below(config):
        name = ".".join(map(str, path))
        where = (*_TREE_PATH, *written_path)
        if is_section(name):
            if setting is not None:
                notes.wrong(where, f"is {setting!r}", "write a mapping", WrongValue)
            continue
        key = find(name)
        near = meant(name)
        if near is not None or key is None:
            fix = f"did you mean {near!r}?" if near is not None else _advice_for_unknown_key(name)
            notes.issues.append(Issue(where, "is not a key of veRL", fix, UnknownField, at_key=True))
            continue
        is_known = key.name == canonical(name)
        wants = key.wrong(setting) if is_known else None
        if wants:
            notes.wrong(where, f"is {setting!r}", f"write {wants}", WrongValue)
            continue
        # Megatron's settings are reported together with `trainer.megatron`.
        if (
            path in _KEYS_READ_ELSEWHERE
            or path[:3] == _MEGATRON_KEY
            or (path in _ARGUMENTS_BY_VERL_KEY and engine == "verl")
        ):
            continue
        if path in CHECKPOINT_CONTENTS_KEYS or (path in FIELDS_BY_VERL_KEY and setting != key.default):
            continue  # already read, or compared with the field
        ours = verl_value(experiment, key) if is_known else None
        if not _is_neutral(key, is_known, setting) and (ours is None or setting != ours):
            _report_unread_key(key, where, setting, engine, notes)
        elif setting is not None and ours is not None and setting != ours:
            notes.warn(f"{show(where)} has no effect: {key.target} is {ours!r} in veRL's terms")


def _advice_for_unknown_key(name: str) -> str:
    """Returns advice naming veRL's keys in the section of an unknown key."""
    section = name.rpartition(".")[0]
    known_keys = keys_in(section) if section else []
    return (
        f"leave it out; known here: {', '.join(known_keys[:8])}" + (", ..." if len(known_keys) > 8 else "")
        if known_keys
        else _SECTIONS_ADVICE
    )


def _is_neutral(key: VerlKey, is_known: bool, setting: Any) -> bool:
    """True for unset values and veRL's default; for a key known only by its section, for unset values and False."""
    return setting in (None, "", [], {}) or (setting == key.default if is_known else setting is False)


def _report_unread_key(key: VerlKey, where: FieldPath, setting: Any, engine: str, notes: Notes) -> None:
    """Adds an issue for an unread key if it would change learning or sampling, otherwise a warning."""
    if key.argument:
        notes.warn(f"{show(where)} has no effect: only used by verl, and {engine} trains")
    elif key.fate in ("dropped", "tree"):
        notes.warn(f"{show(where)} has no effect" + (f": {key.note}" if key.note else ""))
    elif key.name in _KEYS_OVERRULED:
        notes.warn(f"{show(where)} has no effect: {key.target} decides")
    elif key.target.startswith(_FIELDS_WITHOUT_INFLUENCE) or ".megatron." in key.name:
        notes.warn(f"{show(where)} has no effect: " + (f"write {key.target}" if key.target else key.note))
    else:
        fix = f"write {key.target}" + (f" ({key.note})" if key.note else "") if key.target else key.note
        notes.wrong(where, f"is {setting!r}, but is not read here", fix, Unsupported)


def warn_of_critic_keys(config: Mapping[str, Any], notes: Notes) -> None:
    """Warns of every set key of the critic; called for algorithms without a critic."""
    for written_path, path, setting in _leaves_below(config):
        if path[0] == "critic" and path in _KEYS_READ_ELSEWHERE and setting is not None:
            notes.warn(f"{show((*_TREE_PATH, *written_path))} has no effect: the algorithm has no critic")


def verl_arguments(trainer: Trainer, strategy: str, host: Host, notes: Notes) -> dict[str, Any]:
    """Returns the arguments of the engine verl, from veRL's tree and the fields of `trainer`; settings without effect
    are reported in `notes`.
    """
    megatron = strategy == STRATEGY
    settings: dict[str, tuple[FieldPath, Any]] = {}
    for written_path, path, setting in _leaves_below(trainer.trainer_config or {}):
        name = _ARGUMENTS_BY_VERL_KEY.get(path)
        if name is not None and path[:3] != _MEGATRON_KEY:
            _add_setting(settings, name, (*_TREE_PATH, *written_path), setting, notes)
    for field, name in ARGUMENTS_BY_TRAINER_FIELD.items():
        if field in trainer.model_fields_set:
            _add_setting(settings, name, ("trainer", field), getattr(trainer, field), notes)
    for name, argument in trainer.engine_args.items():
        # An argument written by the user under the engine's name takes precedence over verl's.
        if name in ("use_dynamic_bsz", "micro_batch_size_per_gpu"):
            settings[name] = (("trainer", "engine_args", name), argument)
    _warn_of_unused_split(settings, notes)
    unwritten = _defaults_on_gpus(
        {*settings, *trainer.engine_args}, trainer.engine_args.get("dtype"), host, megatron=megatron
    )
    if not megatron:
        acting = {
            name: argument
            for name, (where, argument) in settings.items()
            if _has_effect(name, where, argument, host, notes)
        }
        return {**unwritten, **acting}
    accepted = {
        name: argument
        for name, (where, argument) in settings.items()
        if not only_fsdp2(name, where, argument, notes)
        and _has_effect_with_megatron(name, where, argument, host, notes)
    }
    return {**unwritten, **accepted, **megatron_arguments(trainer, leaves(trainer), host, notes)}


def _defaults_on_gpus(set_names: Collection[str], dtype: str | None, host: Host, *, megatron: bool) -> dict[str, bool]:
    """Returns the engine's defaults of unset settings, by name, all True: layers are recomputed, and texts are not
    padded.

    They apply on GPUs. flash-attn supports only bfloat16, so texts are padded in float32. On an uninspected host, FSDP2
    recomputes layers, possible everywhere.
    """
    if not host.seen and not megatron and "gradient_checkpointing" not in set_names:
        return {"gradient_checkpointing": True}
    if not host.gpus:
        return {}
    packed = without_kernels(host) is None if megatron else "flash-attn" in host.packages
    defaults = {"gradient_checkpointing": True, "use_remove_padding": packed and dtype == "bfloat16"}
    return {name: is_default for name, is_default in defaults.items() if is_default and name not in set_names}


def _has_effect_with_megatron(name: str, where: FieldPath, setting: Any, host: Host, notes: Notes) -> bool:
    """True if the engine should receive the argument with Megatron's layers; otherwise a warning gives the reason."""
    if name == "use_remove_padding" and setting and (why := without_kernels(host)) is not None:
        notes.warn(f"{show(where)} has no effect: texts are padded: {why}")
        return False
    if name == "gradient_checkpointing" and setting and not host.gpus and host.seen:
        notes.warn(f"{show(where)} has no effect: verl trains on the CPU, where Megatron keeps all activations")
        return False
    return True


def _warn_of_unused_split(settings: Mapping[str, tuple[FieldPath, Any]], notes: Notes) -> None:
    """Warns if `use_dynamic_bsz` and the number of responses per micro-batch leave one of the two without effect.

    Micro-batches are split by tokens, unless `use_dynamic_bsz` is false and a number of responses is set.
    """
    by_tokens, dynamic = settings.get("use_dynamic_bsz", ((), True))
    counted, size = settings.get("micro_batch_size_per_gpu", ((), 0))
    if not dynamic and not size:
        notes.warn(
            f"{show(by_tokens)} has no effect: the number of responses per micro-batch is not set "
            "(ppo_micro_batch_size_per_gpu), so micro-batches are split by tokens"
        )
    elif dynamic and size:
        notes.warn(f"{show(counted)} has no effect: use_dynamic_bsz is true, so micro-batches are split by tokens")


def leaves(trainer: Trainer) -> list[tuple[FieldPath, FieldPath, Any]]:
    """Returns the settings of veRL's tree in the file: path in the file, path in veRL's configuration, and value."""
    return [
        ((*_TREE_PATH, *written_path), path, leaf)
        for written_path, path, leaf in _leaves_below(trainer.trainer_config or {})
    ]


def _leaves_below(node: Mapping[str, Any]) -> Iterator[tuple[FieldPath, FieldPath, Any]]:
    """Yields the settings of a tree: path as written below the tree, path in veRL's configuration, and value.

    A file may omit the level `actor_rollout_ref`.
    """
    for path, leaf in _walk(node, ()):
        yield path, _with_parent_section(path), leaf


def _with_parent_section(path: FieldPath) -> FieldPath:
    """Returns the path in veRL's configuration: with `actor_rollout_ref` if the file omits that level."""
    return ("actor_rollout_ref", *path) if path[0] in _TOP_SECTIONS else path


def _walk(node: Mapping[str, Any], above: FieldPath) -> Iterator[tuple[FieldPath, Any]]:
    """Yields paths and values of a tree's leaves; a mapping is a leaf where veRL has a mapping as a value."""
    for key, child in node.items():
        path = (*above, key)
        if isinstance(child, Mapping) and not takes_no_mapping(".".join(map(str, _with_parent_section(path)))):
            yield from _walk(child, path)
        else:
            yield path, child


def _add_setting(
    settings: dict[str, tuple[FieldPath, Any]], name: str, where: FieldPath, setting: Any, notes: Notes
) -> None:
    """Adds an argument to `settings`; adds an issue for a wrong type or a value contradicting another field's."""
    if setting is None:
        return
    if name in _COUNT_ARGUMENTS or name == "fsdp_size":
        least = -1 if name == "fsdp_size" else 1
        if isinstance(setting, bool) or not isinstance(setting, int) or setting < least:
            # The guide's default of this field of `trainer` counts as 1.
            if where[0:2] == ("trainer", "ulysses_sequence_parallel_size"):
                return
            notes.wrong(where, f"is {setting!r}", f"write a whole number of at least {least}", WrongValue)
            return
    elif name != "save_strategy" and not isinstance(setting, bool):
        notes.wrong(where, f"is {setting!r}", "write true or false", WrongValue)
        return
    if name in settings and settings[name][1] != setting:
        notes.wrong(
            where, f"is {setting!r}, but {show(settings[name][0])} is {settings[name][1]!r}", "keep one of the two"
        )
    settings[name] = (where, setting)


def _has_effect(name: str, where: FieldPath, setting: Any, host: Host, notes: Notes) -> bool:
    """True if the engine should receive the argument; otherwise a warning gives the reason."""
    if name in _GPU_ARGUMENTS and setting and not host.gpus and host.seen:
        notes.warn(f"{show(where)} has no effect: verl trains on the CPU")
        return False
    padding_free = (name == "use_remove_padding" and setting) or (
        name == "ulysses_sequence_parallel_size" and setting > 1
    )
    if padding_free and host.seen and "flash-attn" not in host.packages:
        notes.warn(
            f"{show(where)} has no effect: texts are padded, on one rank each: flash-attn is not installed where "
            "workers run"
        )
        return False
    return True


_SYNONYMOUS_FIELDS: Final[Mapping[FieldPath, FieldPath]] = {("trainer", "grad_clip"): (*_OPTIMIZER_PATH, "clip_grad")}
"""Field in another section that sets the same, by field."""


def with_fields_from_verl_tree(experiment: Experiment, notes: Notes) -> Experiment:
    """Returns the experiment with fields of the file that only veRL's tree sets, and with the checkpoints' contents.

    Adds an issue if a field and the tree, or two synonyms in the tree, set different values; veRL's default in the tree
    has no consequence then.
    """
    settings: dict[FieldPath, tuple[FieldPath, Any]] = {}
    # Defaults come last: of two synonyms the one with a different value counts.
    for where, key, setting in sorted(leaves(experiment.trainer), key=lambda leaf: _is_default(leaf[1], leaf[2])):
        field = FIELDS_BY_VERL_KEY.get(key)
        if (
            field is None
            or setting is None
            or (reading := _converted_setting(experiment, field, where, setting, notes)) is None
        ):
            continue
        rival = _own_setting(experiment, field)
        if rival is None and field in settings:
            rival = settings[field]
        if rival is None:
            settings[field] = (where, reading)
        elif rival[1] != reading and not _is_default(key, setting):
            problem = f"is {setting!r}, but {show(rival[0])} (the same setting) is {rival[1]!r}"
            notes.wrong(where, problem, "keep one of the two", Contradiction)
    experiment = _with_checkpoint_contents(experiment, notes)
    return _with_fields(experiment, {field: reading for field, (_, reading) in settings.items()})


def _with_checkpoint_contents(experiment: Experiment, notes: Notes) -> Experiment:
    """Returns the experiment with whole models in its checkpoints if requested by veRL's tree."""
    trainer = experiment.trainer
    for where, key, contents in leaves(trainer):
        if key not in CHECKPOINT_CONTENTS_KEYS or contents is None:
            continue
        if not isinstance(contents, list) or not all(isinstance(name, str) for name in contents):
            notes.wrong(where, f"is {contents!r}", "write a list of texts", WrongValue)
        elif "hf_model" not in contents:
            if not {"model", "optimizer", "extra"} <= set(contents):
                notes.warn(f"{show(where)} has no effect: a checkpoint always holds everything needed for a restart")
        elif "save_hf_checkpoint" not in trainer.model_fields_set:
            trainer = trainer.model_copy(update={"save_hf_checkpoint": "always"})
        elif trainer.save_hf_checkpoint != "always":
            notes.warn(f"{show(where)} has no effect: trainer.save_hf_checkpoint is {trainer.save_hf_checkpoint}")
    return experiment.model_copy(update={"trainer": trainer})


def _converted_setting(experiment: Experiment, field: FieldPath, where: FieldPath, setting: Any, notes: Notes) -> Any:
    """Returns the value converted to the field's type; None, with an issue, if invalid."""
    name = str(field[-1])
    if name == "lr_warmup_steps" and setting in (0, -1):
        return -1  # veRL uses the ratio in this case
    try:
        return getattr(type(_section_of(experiment, field)).model_validate({name: setting}), name)
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        notes.wrong(where, f"is {setting!r}, which sets {show(field)}: {reason}", f"write {show(field)}", WrongValue)
        return None


def _is_default(key: FieldPath, setting: Any) -> bool:
    """True if the value is veRL's default of the key."""
    row = find(".".join(map(str, key)))
    return row is not None and row.default == setting


def _own_setting(experiment: Experiment, field: FieldPath) -> tuple[FieldPath, Any] | None:
    """Returns the path and value of a field (or its synonym) written in the file; None if unwritten."""
    for field_path in (field, _SYNONYMOUS_FIELDS.get(field, field)):
        section = _section_of(experiment, field_path)
        name = str(field_path[-1])
        if name in section.model_fields_set:
            return field_path, getattr(section, name)
    return None


def _section_of(experiment: Experiment, field: FieldPath) -> Section:
    """Returns the section containing a field: `trainer` or the optimizer."""
    return experiment.trainer if field[0] == "trainer" else as_section(experiment.algorithm.optimizer)


def _with_fields(experiment: Experiment, settings: Mapping[FieldPath, Any]) -> Experiment:
    """Returns the experiment with the fields set as if the file had written them."""
    optimizer = {str(field[-1]): setting for field, setting in settings.items() if field[0] == "algorithm"}
    trainer = {str(field[-1]): setting for field, setting in settings.items() if field[0] == "trainer"}
    if optimizer:
        whole = as_section(experiment.algorithm.optimizer).model_copy(update=optimizer)
        algorithm = experiment.algorithm.model_copy(update={"optimizer": whole})
        experiment = experiment.model_copy(update={"algorithm": algorithm})
    if trainer:
        experiment = experiment.model_copy(update={"trainer": experiment.trainer.model_copy(update=trainer)})
    return experiment

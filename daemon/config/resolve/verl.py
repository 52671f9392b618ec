"""The guide's fields that verl has: what reaches it under its own names, what is refused, what is replaced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rftd.daemon.config.field_path import FieldPath, show
from rftd.daemon.config.issue import Issue, Notes, UnknownField, Unsupported, WrongValue
from rftd.daemon.config.schema.trainer import Trainer
from rftd.daemon.config.verl.key import VerlKey
from rftd.daemon.config.verl.table import engine_arguments, find, meant, read_elsewhere
from rftd.workers.devices.host import Host

_CONFIG: Final[FieldPath] = ("trainer", "trainer_config")
_ACTOR: Final = ("actor_rollout_ref", "actor")

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
_LEARNING: Final = ("algorithm.", "actor_rollout_ref.actor.", "actor_rollout_ref.model.", "critic.")
_COUNTS: Final = ("max_token_len_per_gpu", "micro_batch_size_per_gpu", "ulysses_sequence_parallel_size")
_ON_GPUS: Final = ("param_offload", "optimizer_offload", "ref_param_offload", "activation_offload")


def acts_in_verl(path: FieldPath) -> bool:
    """True for a field of the guide's that torch takes no notice of, and verl does."""
    return path[-2:-1] == ("trainer",) and path[-1] in (*OWN_FIELDS, "trainer_strategy", "trainer_config")


def check_tree(config: Mapping[str, Any], notes: Notes) -> None:
    """Refuses, on any engine, keys that veRL does not have, and those that would change what is learned and do not act.

    The latter have a place of their own here, or none; a value that is veRL's default changes nothing.
    """
    for path, value in _leaves(config):
        name = ".".join(map(str, path))
        where = (*_CONFIG, *path)
        near = meant(name)
        key = find(name)
        if near is not None:
            fix = f"did you mean {near!r}?"
            notes.issues.append(Issue(where, "is no key of veRL", fix, UnknownField, at_key=True))
        elif key is not None and key.name == name and path not in {*_TREE, *_ELSEWHERE}:
            # The others are checked where they act, by what takes them.
            wants = key.wrong(value)
            if wants:
                notes.wrong(where, f"is {value!r}", f"write {wants}", WrongValue)
            elif _elsewhere(key) and value not in (None, key.default):
                fix = f"write {key.target}" if key.target else key.note
                notes.wrong(where, f"is {value!r}, and nothing reads it here", fix, Unsupported)


def _elsewhere(key: VerlKey) -> bool:
    """True for a key that says what is learned, and that says it in another place here, or cannot."""
    learned = key.name.startswith(_LEARNING) and ".checkpoint." not in key.name
    return learned and key.fate in ("field", "rule", "person")


def verl_arguments(trainer: Trainer, host: Host, notes: Notes) -> dict[str, Any]:
    """The arguments of the engine verl that the guide's fields give; what cannot act is warned of or refused."""
    given: dict[str, tuple[FieldPath, Any]] = {}
    for path, value in _leaves(trainer.trainer_config or {}):
        where = (*_CONFIG, *path)
        name = _TREE.get(path)
        if name is not None:
            _take(given, name, where, value, notes)
        elif path not in _ELSEWHERE and value is not None and not meant(".".join(map(str, path))):
            notes.warn(f"{show(where)} has no effect")
    for field, name in OWN_FIELDS.items():
        if field in trainer.model_fields_set:
            _take(given, name, ("trainer", field), getattr(trainer, field), notes)
    _check_strategy(trainer, notes)
    return {name: value for name, (where, value) in given.items() if _acts(name, where, value, host, notes)}


def _leaves(node: Mapping[str, Any], above: FieldPath = ()) -> Iterator[tuple[FieldPath, Any]]:
    """The values of the tree, with their places; verl's older spelling `actor` is below `actor_rollout_ref`."""
    for key, value in node.items():
        path = (*above, key)
        if path == ("actor",):
            path = _ACTOR
        if isinstance(value, Mapping):
            yield from _leaves(value, path)
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


def _check_strategy(trainer: Trainer, notes: Notes) -> None:
    """FSDP2 alone: FSDP is replaced, for it gives the same numbers; others are refused."""
    config = trainer.trainer_config or {}
    actor = config.get("actor_rollout_ref", config)
    actor = actor.get("actor") if isinstance(actor, Mapping) else None
    written = actor.get("strategy") if isinstance(actor, Mapping) else None
    for where, strategy in (
        (("trainer", "trainer_strategy"), trainer.trainer_strategy),
        ((*_CONFIG, *_ACTOR), written),
    ):
        if strategy in (None, "fsdp2"):
            continue
        if strategy == "fsdp":
            notes.warn(f"{show(where)} fsdp: FSDP2 spreads the weights instead, to the same numbers")
        else:
            what = f"is {strategy!r}: it needs megatron-core, and this release trains verl's FSDP2 alone"
            notes.wrong(where, what, "write fsdp2", Unsupported)


def _acts(name: str, where: FieldPath, value: Any, host: Host, notes: Notes) -> bool:
    """True if the argument is to be given to the engine; else it was said why it is not."""
    if name in _ON_GPUS and value and not host.gpus and host.seen:
        notes.warn(f"{show(where)} has no effect without GPUs")
        return False
    padding_free = (name == "use_remove_padding" and value) or (name == "ulysses_sequence_parallel_size" and value > 1)
    if padding_free and host.seen and "flash-attn" not in host.packages:
        notes.warn(
            f"{show(where)} needs flash-attn on a GPU, which is not installed: texts are padded, on one rank each"
        )
        return False
    return True

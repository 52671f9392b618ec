"""`find` looks a key of veRL up, `meant` says which one is misspelled; `engine_arguments` go to the engine."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping
from typing import Final

from rftd.daemon.config.field_path import FieldPath
from rftd.daemon.config.verl.backend_keys import BACKENDS
from rftd.daemon.config.verl.guide_keys import GUIDE
from rftd.daemon.config.verl.key import VerlKey, dropped, person, rule
from rftd.daemon.config.verl.key_groups import SPEED
from rftd.daemon.config.verl.older_keys import OLDER
from rftd.daemon.config.verl.other_keys import OTHERS
from rftd.daemon.config.verl.trainer_keys import TRAINERS

_ASYNC: Final = "async_training"
_BYPASS: Final = "algorithm.rollout_correction.bypass_mode"
_DYNAMIC: Final = f"{_ASYNC}.use_dynamic_resource_scheduling"
_HALVES: Final = "explorers keep their GPUs, and the trainer keeps its own"

ASYNCHRONOUS: Final[tuple[VerlKey, ...]] = (
    rule(f"{_ASYNC}.staleness_threshold", "number", 0.1, "policy.staleness_threshold", "0 is sync_style fixed"),
    rule(f"{_ASYNC}.trigger_parameter_sync_step", "count", 4, "synchronizer.sync_interval", "times require_batches"),
    rule(f"{_ASYNC}.require_batches", "count", 1, "synchronizer.sync_interval", "mini-batches of one update"),
    rule(f"{_ASYNC}.partial_rollout", "bool", True, "synchronizer.sync_style", "false is trainer_driven"),
    rule(f"{_ASYNC}.use_rollout_log_probs", "bool", True, _BYPASS),
    rule(f"{_ASYNC}.compute_prox_log_prob", "bool", False, _BYPASS, "true is false"),
    rule("actor_rollout_ref.actor.use_rollout_log_probs", "bool", False, _BYPASS),
    dropped(f"{_ASYNC}.use_trainer_do_validate", "explorers evaluate", "bool", False),
    dropped(f"{_ASYNC}.checkpoint_engine.*", SPEED),
    dropped(f"{_ASYNC}.concurrent_samples_per_replica", SPEED, "count", 16),
    person(_DYNAMIC, _HALVES, "bool", False),
    *(
        person(f"{_ASYNC}.dynamic_schedule_{name}", _HALVES, switch=_DYNAMIC)
        for name in ("policy", "deactivate_ratio", "enable_rebalance")
    ),
    rule("rollout.nnodes", "count", 1, "explorer.rollout_model.engine_num", "the explorers' half"),
    rule("rollout.n_gpus_per_node", "count", 8, "explorer.rollout_model.engine_num", "the explorers' half"),
    dropped("rollout.n", "veRL reads actor_rollout_ref.rollout.n", "count", 4),
    rule("rollout.total_rollout_steps", "count", 100, "buffer.total_steps", "divided by the mini-batch"),
    rule("rollout.total_epochs", "count", None, "buffer.total_epochs", "veRL's older place"),
    rule("rollout.test_freq", "int", -1, "explorer.eval_interval", "times sync_interval"),
)

TABLE: Final[tuple[VerlKey, ...]] = (*GUIDE, *OTHERS, *TRAINERS, *ASYNCHRONOUS, *BACKENDS, *OLDER)
_SPELLINGS: Final[Mapping[str, str]] = {
    "critic.fsdp.": "critic.model.fsdp_config.",
    "critic.fsdp_config.": "critic.model.fsdp_config.",
    "reward.reward_model.model_path": "reward_model.model.path",
    "reward.reward_model.enable": "reward_model.enable",
    "reward.reward_model.rollout.": "reward_model.rollout.",
    "reward.num_workers": "reward_model.num_workers",
    "actor_rollout_ref.rollout.val_temperature": "actor_rollout_ref.rollout.val_kwargs.temperature",
    "actor_rollout_ref.rollout.n_val": "actor_rollout_ref.rollout.val_kwargs.n",
    "trainer.val_generations_to_log_to_wandb": "trainer.log_val_generations",
}
"""Other names of keys, or of whole sections, in newer and older releases, and the names of the table."""
_EXACT: Final = {key.name: key for key in TABLE if not key.name.endswith(".*")}
_SECTIONS: Final = {key.name.removesuffix("*"): key for key in reversed(TABLE) if key.name.endswith(".*")}
_WORDS: Final = frozenset(
    {word for key in TABLE for word in key.name.split(".")}
    | {"offload_policy", "full_determinism", "free_cache_engine", "total_training_steps", "wrap_policy", "rollout_n"}
    | {"model_dtype", "use_orig_params", "entropy_from_logits_chunk_size", "pad_to_length_bucket", "load_contents"}
    | {"forward_micro_batch_size", "adapter_path", "module", "lr_warmup_init"}
)
_LIKELY: Final = 0.75
"""A word nearer than this to the name of a key in the same section is taken for a misspelling of it."""
_SURE: Final = 0.85
_ALL_BUT: Final = 0.96
"""The same for whole names; the latter where every word of the name is one of veRL's."""


def canonical(name: str) -> str:
    """The table's name of a key, in whichever of veRL's spellings it is given."""
    for new, old in _SPELLINGS.items():
        if name == new or (new.endswith(".") and name.startswith(new)):
            return old + name[len(new) :]
    return name


def find(name: str) -> VerlKey | None:
    """The row of a key, or of the section that holds it; None if veRL has no such key as far as is known here."""
    name = canonical(name)
    if name in _EXACT:
        return _EXACT[name]
    held = [(len(section), key) for section, key in _SECTIONS.items() if f"{name}.".startswith(section)]
    if not held:
        return None
    return max(held, key=lambda pair: pair[0])[1]


def is_section(name: str) -> bool:
    """True of a section that holds known keys."""
    return any(known.startswith(f"{canonical(name)}.") for known in _EXACT)


def is_known(name: str) -> bool:
    """True of a key of the table by its own name."""
    return canonical(name) in _EXACT


def takes_no_mapping(name: str) -> bool:
    """True of a known key whose value is no mapping."""
    row = _EXACT.get(canonical(name))
    return row is not None and row.kind != "any" and not is_section(name)


def keys_in(section: str) -> list[str]:
    """The last words of the keys that are known in a section."""
    section = canonical(section)
    return [last for above, _, last in (name.rpartition(".") for name in _EXACT) if above == section]


@functools.lru_cache(maxsize=4096)  # the nearest name is dear to find
def meant(name: str) -> str | None:
    """The known key that `name` is a misspelling of; None if it is known, or near to none."""
    name = canonical(name)
    if name in _EXACT:
        return None
    section, _, last = name.rpartition(".")
    if find(name) is not None and _WORDS.issuperset(name.split(".")):
        # In a section that is known as a whole: made of words that veRL has, it is one of its own, or all but another.
        near = difflib.get_close_matches(name, [known for known in _EXACT if known.endswith(f".{last}")], 1, _ALL_BUT)
        return near[0] if near else None
    beside = {known.rpartition(".")[2]: known for known in _EXACT if known.rpartition(".")[0] == section}
    found = difflib.get_close_matches(last, beside, 1, _LIKELY)
    if found:
        return beside[found[0]]
    # Long names of one section are alike by their beginning alone: the word itself must be near as well.
    alike = [known for known in _EXACT if difflib.get_close_matches(last, [known.rpartition(".")[2]], 1, _LIKELY)]
    near = difflib.get_close_matches(name, alike, 1, _SURE)
    return near[0] if near else None


def engine_arguments() -> Mapping[FieldPath, str]:
    """Keys below `trainer.trainer_config` that are arguments of the trainer engine `verl`, with their names there."""
    return {tuple(key.name.split(".")): key.argument for key in TABLE if key.argument and not _of_critic(key)}


def critic_arguments() -> Mapping[FieldPath, str]:
    """Keys below `trainer.trainer_config.critic` that are arguments of every engine with a critic, likewise."""
    return {tuple(key.name.split("."))[1:]: key.argument for key in TABLE if key.argument and _of_critic(key)}


def read_elsewhere() -> frozenset[FieldPath]:
    """Keys below `trainer.trainer_config` that act without being arguments of the engine `verl`."""
    acting = [key for key in TABLE if key.read or (key.argument and _of_critic(key))]
    return frozenset(tuple(key.name.split(".")) for key in acting)


def _of_critic(key: VerlKey) -> bool:
    return key.name.startswith("critic.")

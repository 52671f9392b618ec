"""`TABLE` has the keys of veRL's configuration: `find` looks one up, and `meant` says which one is misspelled.

The rows and veRL's own configurations are in `tables.json` beside it. What becomes of a key is written there by hand;
the defaults and the configurations are those of the installed release: `tests/golden/make_verl_tables.py`.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec

from rftd.daemon.config.field_path import FieldPath
from rftd.daemon.config.grammar import has_interpolation
from rftd.ops.decoding import json_decoder

Kind: TypeAlias = Literal["bool", "count", "int", "number", "text", "texts", "any"]
Fate: TypeAlias = Literal["field", "tree", "rule", "dropped", "person"]

_TYPES: Final = {
    "bool": "true or false",
    "count": "a whole number of at least 1",
    "int": "a whole number",
    "number": "a number",
    "text": "text",
    "texts": "text, or a list of texts",
}


class VerlKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of the table: a key, its type and default in veRL, and where it goes here.

    `fate` says what becomes of a value: `field`, it goes to `target` as it is; `tree`, it keeps its name below
    `trainer.trainer_config`; `rule`, `target` is worked out of it and of other keys; `dropped` and `person`, it goes
    nowhere, and `note` says why or what somebody has to decide.
    """

    name: str
    """A name that ends with `.*` is a whole section."""
    fate: Fate
    kind: Kind = "any"
    default: Any = None
    """veRL's own; None where it has none, or takes it from another key."""
    goes: str = msgspec.field(default="", name="target")
    note: str = ""
    argument: str = ""
    """The argument of the trainer engine that it is below `trainer.trainer_config`."""
    read: bool = False
    """True if it acts below `trainer.trainer_config` without being an argument."""
    switch: str = ""
    """The key without which this one asks for nothing: where that has its default, so has this one."""

    @property
    def target(self) -> str:
        """The field that a value goes to; "" where there is none."""
        return f"trainer.trainer_config.{self.name}" if self.fate == "tree" else self.goes

    def wrong(self, value: Any) -> str | None:
        """The type that veRL wants, in words; None if the value has it. null stands for the default everywhere."""
        if value is None or (isinstance(value, str) and has_interpolation(value)):
            return None
        return None if _fits(self.kind, value) else _TYPES[self.kind]


def _fits(kind: Kind, value: Any) -> bool:
    if kind == "bool":
        return isinstance(value, bool)
    if kind in ("count", "int"):
        whole = isinstance(value, int) and not isinstance(value, bool)
        return whole and (kind == "int" or value >= 1)
    if kind == "number":
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind == "text":
        # Hydra reads a name of digits as a number: whoever wants text gets its text.
        return isinstance(value, str | int | float)
    if kind == "texts":
        return isinstance(value, str) or (isinstance(value, list) and all(isinstance(item, str) for item in value))
    return True


class VerlUndecided(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Keys that ask for something that a person has to build or choose: the field that says it is a gap."""

    keys: str
    """An expression that the whole names of the keys match."""
    target: str
    note: str
    asks: Literal["given", "on"] = "given"
    """The values that make a gap: every one that the run gives, or only those that switch the key on."""
    but: tuple[str, ...] = ()
    """Values of these keys that make no gap."""

    def is_asked(self, value: Any) -> bool:
        """True if this value of a key makes a gap."""
        if self.asks == "on":
            return value is True or (isinstance(value, str) and value not in ("", "False", "false"))
        return value not in (None, "", False, *self.but)


class VerlTables(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `tables.json`: veRL's keys, words and configurations."""

    release: str
    """The minor release of veRL that the tables were made from."""
    spellings: dict[str, str]
    """Other names of keys, or of whole sections, in newer and older releases, and the names of the rows."""
    groups: frozenset[str]
    """Names in a `defaults` list whose values are those of the rows."""
    words: dict[str, dict[str, Any]]
    """Words that are values of keys, or names of arguments, and what stands for them here."""
    undecided: tuple[VerlUndecided, ...]
    keys: dict[str, tuple[VerlKey, ...]]
    """Rows by where they come from. Of two sections one in the other, the longer one wins."""
    configurations: dict[str, dict[str, Any]]
    """The values of each veRL configuration that differ from `ppo_trainer`, by name and key."""


FILE: Final = Path(__file__).with_name("tables.json")
TABLES: Final = json_decoder(VerlTables).decode(FILE.read_bytes())
TABLE: Final[tuple[VerlKey, ...]] = tuple(key for rows in TABLES.keys.values() for key in rows)
_EXACT: Final = {key.name: key for key in TABLE if not key.name.endswith(".*")}
_SECTIONS: Final = {key.name.removesuffix("*"): key for key in TABLE if key.name.endswith(".*")}
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
    for new, old in TABLES.spellings.items():
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

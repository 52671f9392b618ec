"""`TABLE` has the keys of veRL's configuration: `find` looks up a key, and `meant` suggests a correction of a misspelt
key.

The rows and veRL's own configurations are in `tables.json`. The conversion of each key is written by hand; defaults and
configurations come from the installed release: `tests/golden/make_verl_tables.py`.
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
"""Type of a key's value in veRL."""
Fate: TypeAlias = Literal["field", "tree", "rule", "dropped", "person"]
"""Kind of a key's conversion, as described at `VerlKey`."""

_TYPES: Final = {
    "bool": "true or false",
    "count": "a whole number of at least 1",
    "int": "a whole number",
    "number": "a number",
    "text": "text",
    "texts": "text, or a list of texts",
}
"""Types in words."""


class VerlKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of the table: a key with type and default in veRL, and the target in rftd.

    `fate` is the kind of conversion: `field` copies to `target` unchanged; `tree` keeps the name below
    `trainer.trainer_config`; `rule` computes `target` from several keys; `dropped` and `person` have no target, and
    `note` gives the reason or the required decision.
    """

    name: str
    """Name of the key; a name ending with `.*` is a whole section."""
    fate: Fate
    """Kind of the key's conversion."""
    kind: Kind = "any"
    """Type of the value."""
    default: Any = None
    """veRL's default; None if there is none, or if derived from another key."""
    goes: str = msgspec.field(default="", name="target")
    """Field receiving the value, as text; empty if there is none."""
    note: str = ""
    """Reason for dropping the key, or the decision required of a person."""
    argument: str = ""
    """Argument of the trainer engine set below `trainer.trainer_config`."""
    read: bool = False
    """True if the key acts below `trainer.trainer_config` without being an argument."""
    switch: str = ""
    """Key enabling this one: while the switch has its default, so has this key."""

    @property
    def target(self) -> str:
        """Field receiving the value; "" if there is none."""
        return f"trainer.trainer_config.{self.name}" if self.fate == "tree" else self.goes

    def wrong(self, setting: Any) -> str | None:
        """Returns veRL's expected type in words; None for a value of the type. null means the default everywhere."""
        if setting is None or (isinstance(setting, str) and has_interpolation(setting)):
            return None
        return None if _fits(self.kind, setting) else _TYPES[self.kind]


def _fits(kind: Kind, setting: Any) -> bool:
    """True if the value has the type."""
    if kind == "bool":
        return isinstance(setting, bool)
    if kind in ("count", "int"):
        whole = isinstance(setting, int) and not isinstance(setting, bool)
        return whole and (kind == "int" or setting >= 1)
    if kind == "number":
        return isinstance(setting, int | float) and not isinstance(setting, bool)
    if kind == "text":
        # Hydra reads a name of digits as a number, converted to text where text is expected.
        return isinstance(setting, str | int | float)
    if kind == "texts":
        return isinstance(setting, str) or (
            isinstance(setting, list) and all(isinstance(element, str) for element in setting)
        )
    return True


class VerlUndecided(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Keys that need a decision or work by a person; their fields become gaps."""

    keys: str
    """Regular expression matching the full names of the keys."""
    target: str
    """Field that becomes a gap."""
    note: str
    """Decision required of a person."""
    asks: Literal["given", "on"] = "given"
    """`given` if every value needs a decision, `on` if only values enabling the feature do."""
    but: tuple[str, ...] = ()
    """Values of these keys not making a gap."""

    def is_asked(self, setting: Any) -> bool:
        """True if the value of a key makes a gap."""
        if self.asks == "on":
            return setting is True or (isinstance(setting, str) and setting not in ("", "False", "false"))
        return setting not in (None, "", False, *self.but)


class VerlTables(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of `tables.json`: veRL's keys with their conversion, synonyms, words and configurations."""

    release: str
    """Minor release of veRL used to make the tables."""
    spellings: dict[str, str]
    """Alternative names of keys or sections in newer and older releases, mapped to the rows' names."""
    groups: frozenset[str]
    """Names in a `defaults` list with the rows' values."""
    words: dict[str, dict[str, Any]]
    """Values of keys, or names of arguments, mapped to rftd's equivalents."""
    undecided: tuple[VerlUndecided, ...]
    """Keys that need a decision by a person."""
    keys: dict[str, tuple[VerlKey, ...]]
    """Rows by origin. Of two nested sections, the longer name wins."""
    configurations: dict[str, dict[str, Any]]
    """Values of each veRL configuration differing from `ppo_trainer`, by name and key."""


FILE: Final = Path(__file__).with_name("tables.json")
"""Path of `tables.json`."""
TABLES: Final = json_decoder(VerlTables).decode(FILE.read_bytes())
"""Content of `tables.json`."""
TABLE: Final[tuple[VerlKey, ...]] = tuple(key for rows in TABLES.keys.values() for key in rows)
"""Rows of all keys and sections."""
_EXACT: Final = {key.name: key for key in TABLE if not key.name.endswith(".*")}
"""Rows of single keys, by name."""
_SECTIONS: Final = {key.name.removesuffix("*"): key for key in TABLE if key.name.endswith(".*")}
"""Rows of whole sections, by the section's name with a dot."""
_WORDS: Final = frozenset(
    {word for key in TABLE for word in key.name.split(".")}
    | {"offload_policy", "full_determinism", "free_cache_engine", "total_training_steps", "wrap_policy", "rollout_n"}
    | {"model_dtype", "use_orig_params", "entropy_from_logits_chunk_size", "pad_to_length_bucket", "load_contents"}
    | {"forward_micro_batch_size", "adapter_path", "module", "lr_warmup_init"}
)
"""Words that occur in names of veRL's keys."""
_LIKELY: Final = 0.75
"""Similarity above which a word counts as a misspelling of a key in the same section."""
_SURE: Final = 0.85
"""Similarity above which a whole name counts as a misspelling."""
_ALL_BUT: Final = 0.96
"""Similarity for whole names consisting only of words known to veRL."""


def canonical(name: str) -> str:
    """Returns the table's name of a key, for a key in any of veRL's spellings."""
    for new, old in TABLES.spellings.items():
        if name == new or (new.endswith(".") and name.startswith(new)):
            return old + name[len(new) :]
    return name


def find(name: str) -> VerlKey | None:
    """Returns the row of a key, or of the section around it; None for a key unknown to the table."""
    name = canonical(name)
    if name in _EXACT:
        return _EXACT[name]
    enclosing = [(len(section), key) for section, key in _SECTIONS.items() if f"{name}.".startswith(section)]
    if not enclosing:
        return None
    return max(enclosing, key=lambda pair: pair[0])[1]


def is_section(name: str) -> bool:
    """True for a section with known keys."""
    return any(key.startswith(f"{canonical(name)}.") for key in _EXACT)


def is_known(name: str) -> bool:
    """True for a key with a separate row in the table."""
    return canonical(name) in _EXACT


def takes_no_mapping(name: str) -> bool:
    """True for a known key with a value other than a mapping."""
    row = _EXACT.get(canonical(name))
    return row is not None and row.kind != "any" and not is_section(name)


def keys_in(section: str) -> list[str]:
    """Returns the last words of the known keys in a section."""
    section = canonical(section)
    return [last for above, _, last in (name.rpartition(".") for name in _EXACT) if above == section]


@functools.lru_cache(maxsize=4096)  # searching for the nearest name is expensive
def meant(name: str) -> str | None:
    """Returns the known key most similar to an unknown `name`, for a suggestion; None if no key is similar."""
    name = canonical(name)
    if name in _EXACT:
        return None
    section, _, last = name.rpartition(".")
    if find(name) is not None and _WORDS.issuperset(name.split(".")):
        # In a section known only as a whole, a name made of veRL's words is a key of the section, unless almost equal
        # to another.
        near = difflib.get_close_matches(name, [key for key in _EXACT if key.endswith(f".{last}")], 1, _ALL_BUT)
        return near[0] if near else None
    siblings = {key.rpartition(".")[2]: key for key in _EXACT if key.rpartition(".")[0] == section}
    similar = difflib.get_close_matches(last, siblings, 1, _LIKELY)
    if similar:
        return siblings[similar[0]]
    # Long names of one section resemble each other by their prefix: the last word must be similar as well.
    alike = [key for key in _EXACT if difflib.get_close_matches(last, [key.rpartition(".")[2]], 1, _LIKELY)]
    near = difflib.get_close_matches(name, alike, 1, _SURE)
    return near[0] if near else None


def engine_arguments() -> Mapping[FieldPath, str]:
    """Returns keys below `trainer.trainer_config` that are arguments of the engine `verl`, with their names."""
    return {tuple(key.name.split(".")): key.argument for key in TABLE if key.argument and not _of_critic(key)}


def critic_arguments() -> Mapping[FieldPath, str]:
    """Returns keys below `trainer.trainer_config.critic` that are arguments of each engine with a critic."""
    return {tuple(key.name.split("."))[1:]: key.argument for key in TABLE if key.argument and _of_critic(key)}


def read_elsewhere() -> frozenset[FieldPath]:
    """Returns keys below `trainer.trainer_config` acting without being arguments of the engine `verl`."""
    acting = [key for key in TABLE if key.read or (key.argument and _of_critic(key))]
    return frozenset(tuple(key.name.split(".")) for key in acting)


def _of_critic(key: VerlKey) -> bool:
    """True for a key of the critic."""
    return key.name.startswith("critic.")

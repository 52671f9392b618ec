"""`VerlKey`: one key of veRL's configuration, its type and default there, and where it goes here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from rftd.daemon.config.grammar import has_interpolation

Kind: TypeAlias = Literal["bool", "count", "int", "number", "text", "texts", "any"]
Fate: TypeAlias = Literal["field", "tree", "rule", "dropped", "person"]

_WORDS: Final = {
    "bool": "true or false",
    "count": "a whole number of at least 1",
    "int": "a whole number",
    "number": "a number",
    "text": "text",
    "texts": "text, or a list of texts",
}


@dataclass(frozen=True, slots=True)
class VerlKey:
    """A row of the table.

    `fate` says what becomes of a value: `field`, it goes to `target` as it is; `tree`, it keeps its name below
    `trainer.trainer_config`; `rule`, `target` is worked out of it and of other keys; `dropped` and `person`, it goes
    nowhere, and `note` says why or what somebody has to decide.
    """

    name: str
    kind: Kind
    default: Any
    """veRL's own; None where it has none, or takes it from another key."""
    fate: Fate
    target: str = ""
    note: str = ""
    argument: str = ""
    """The argument of the trainer engine that it is below `trainer.trainer_config`."""
    read: bool = False
    """True if it acts below `trainer.trainer_config` without being an argument."""
    switch: str = ""
    """The key without which this one asks for nothing: where that has its default, so has this one."""

    def wrong(self, value: Any) -> str | None:
        """The type that veRL wants, in words; None if the value has it. null stands for the default everywhere."""
        if value is None or (isinstance(value, str) and has_interpolation(value)):
            return None
        return None if _fits(self.kind, value) else _WORDS[self.kind]


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


def field(name: str, kind: Kind, default: Any, target: str, note: str = "", argument: str = "") -> VerlKey:
    """A key whose value goes to a field as it is."""
    return VerlKey(name, kind, default, "field", target, note, argument)


def tree(name: str, kind: Kind, default: Any, note: str = "", argument: str = "", read: bool = False) -> VerlKey:
    """A key that keeps its name below `trainer.trainer_config`."""
    return VerlKey(name, kind, default, "tree", f"trainer.trainer_config.{name}", note, argument, read)


def rule(
    name: str, kind: Kind, default: Any, target: str, note: str = "", argument: str = "", read: bool = False
) -> VerlKey:
    """A key from which, with others, fields are worked out."""
    return VerlKey(name, kind, default, "rule", target, note, argument, read)


def dropped(name: str, note: str, kind: Kind = "any", default: Any = None) -> VerlKey:
    """A key that changes nothing here, with the reason."""
    return VerlKey(name, kind, default, "dropped", "", note)


def person(name: str, note: str, kind: Kind = "any", default: Any = None, *, switch: str = "") -> VerlKey:
    """A key that somebody has to decide about, with what is to be decided."""
    return VerlKey(name, kind, default, "person", "", note, switch=switch)

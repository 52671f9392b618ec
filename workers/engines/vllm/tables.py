"""What the newest vLLM takes and runs, to check a file where there is no vLLM: read from `tables.json` beside it.

`tests/golden/make_vllm_tables.py` writes that file from the installed vLLM; tests/engines compares the two.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, Union

import msgspec

from rftd.ops.decoding import json_decoder

TypeTerm: TypeAlias = "str | list[Any] | dict[str, Any]"
"""A type as JSON: a name; several types in a list; `{"one_of": values}`; `{"list": type}`; `{"values": type}`."""
_NAMES: Final[dict[str, Any]] = {"any": Any, "bool": bool, "float": float, "int": int, "none": None, "str": str}


class VllmTables(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `tables.json`: vLLM's arguments and the models that it has."""

    version: str
    """The minor release of vLLM that the tables were made from."""
    arguments: dict[str, TypeTerm]
    """The arguments of AsyncEngineArgs."""
    generating: frozenset[str]
    """Architectures that vLLM generates text with, by the names in config.json."""
    not_carried: frozenset[str]
    """Architectures of transformers that vLLM does not have, and that its transformers backend cannot run."""
    sized_heads: frozenset[str]
    """Model types whose heads have a size of their own where config.json names none."""
    cpu_heads: tuple[int, ...]
    """Sizes of heads that vLLM's attention on a CPU has."""


def type_of(term: TypeTerm) -> Any:
    """The type that a term stands for."""
    match term:
        case str():
            return _NAMES[term]
        case [*members]:
            return Union[tuple(type_of(member) for member in members)]  # noqa: UP007 (of as many as there are)
        case {"one_of": [*values]}:
            return Literal[tuple(values)]
        case {"list": item}:
            return list[type_of(item)]  # type: ignore[misc]
        case {"values": value}:
            return dict[str, type_of(value)]  # type: ignore[misc]
    raise ValueError(f"no type: {term}")


FILE: Final = Path(__file__).with_name("tables.json")
TABLES: Final = json_decoder(VllmTables).decode(FILE.read_bytes())
ASYNC_ENGINE_ARGS: Final[dict[str, Any]] = {name: type_of(term) for name, term in TABLES.arguments.items()}
"""The type of each argument, as plain data has it: a configuration object is a dict, and a class no argument."""

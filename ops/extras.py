"""The optional packages of rftd that many installations do without: which are missing, and how they are installed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from rftd.ops.errors import NotInstalledError

TORCH: Final = "torch"
"""The extra of whoever generates and trains here, or reads the tokenizer of a model folder."""
PLOT: Final = "plot"
"""The extra of whoever draws pictures."""
DATA: Final = "data"
"""The extra that reads Parquet and Arrow files."""
PACKAGES: Final = {
    TORCH: ("safetensors", "tokenizers", "torch", "transformers"),
    PLOT: ("matplotlib",),
    DATA: ("pyarrow",),
}
"""The packages of each extra, by the name of its distribution, which is also that of its module."""


def missing_of(extra: str) -> list[str]:
    """The packages of the extra that are not installed here. None of them is imported."""
    return [name for name in PACKAGES[extra] if find_spec(name) is None]


def check_extra(extra: str, whom: str) -> None:
    """Raises NotInstalledError, which says how to install the extra, if `whom` would not find all of its packages."""
    if missing := missing_of(extra):
        raise not_installed(extra, whom, missing)


def not_installed(extra: str, whom: str, missing: list[str], *, field: str | None = None) -> NotInstalledError:
    """The error of packages that `whom` needs and that are missing."""
    verb = "are" if len(missing) > 1 else "is"
    return NotInstalledError(
        f"{whom} needs {', '.join(missing)}, which {verb} not installed here",
        field=field,
        fix=f"pip install 'rftd[{extra}]'",
    )

"""The optional packages of rftd: the missing packages, and the install command."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from rftd.ops.errors import NotInstalledError

TORCH: Final = "torch"
"""The extra for generating and training on this machine, and for tokenizers of model folders."""
PLOT: Final = "plot"
"""The extra for drawing pictures."""
NOTEBOOK: Final = "notebook"
"""The extra for drawing runs live in a notebook's cell."""
DATA: Final = "data"
"""The extra for reading Parquet and Arrow files."""
PACKAGES: Final = {
    TORCH: ("safetensors", "tokenizers", "torch", "transformers"),
    PLOT: ("matplotlib",),
    NOTEBOOK: ("anywidget",),
    DATA: ("pyarrow",),
}
"""The packages of each extra, by the distribution's name, which equals the module's name."""


def missing_of(extra: str) -> list[str]:
    """Returns the packages of the extra not installed here, without importing any."""
    return [name for name in PACKAGES[extra] if find_spec(name) is None]


def check_extra(extra: str, whom: str) -> None:
    """Raises NotInstalledError, with the install command, unless all packages of the extra are installed for `whom`."""
    if missing := missing_of(extra):
        raise not_installed(extra, whom, missing)


def not_installed(extra: str, whom: str, missing: list[str], *, field: str | None = None) -> NotInstalledError:
    """Returns the error for missing packages needed by `whom`, with the pip command as its fix."""
    verb = "are" if len(missing) > 1 else "is"
    return NotInstalledError(
        f"{whom} needs {', '.join(missing)}, which {verb} not installed here",
        field=field,
        fix=f"pip install 'rftd[{extra}]'",
    )

"""The settings by which Ray's own defaults leave a cluster open, as far as this side's environment tells them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

MODE: Final = "RAY_AUTH_MODE"
TOKENS: Final = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
"""Variables of Ray's that hold a cluster's token, or the path of a file with it."""
REPORTS: Final = "RAY_USAGE_STATS_ENABLED"
LOCAL: Final = "local"
"""The address of a cluster that the driver starts itself, on this machine alone, with both settings."""


class OpenDefault(NamedTuple):
    """A default of Ray that nothing here changes, and what does."""

    subject: str
    what: str
    fix: str


def open_defaults(environ: Mapping[str, str], address: str) -> list[OpenDefault]:
    """The defaults that a cluster at `address` has if its nodes were started with the same variables as this side."""
    if address == LOCAL:
        return []
    defaults: list[OpenDefault] = []
    has_token = any(environ.get(name, "").strip() for name in TOKENS)
    mode = environ.get(MODE, "token" if has_token else "")
    if mode != "token":
        what = f"{MODE} is {mode or 'not set'}: nodes of `ray start` take work from whoever reaches their ports"
        fix = f"export {MODE}=token wherever `ray start` and rftd run, with one token: ray get-auth-token --generate"
        defaults.append(OpenDefault("authentication", what, fix))
    if environ.get(REPORTS) != "0":
        what = f"{REPORTS} is not 0: nodes of `ray start` report their usage to Ray's makers"
        defaults.append(OpenDefault("usage reports", what, f"export {REPORTS}=0 wherever `ray start` runs"))
    return defaults

"""Defaults of Ray that leave a cluster open to others, judged by the environment variables of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

MODE: Final = "RAY_AUTH_MODE"
"""Name of Ray's environment variable for the check of tokens; `token` refuses clients without the cluster's token."""
TOKENS: Final = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
"""Names of Ray's environment variables with a cluster's token, and with the path of a file containing it."""
REPORTS: Final = "RAY_USAGE_STATS_ENABLED"
"""Name of Ray's environment variable for usage reports to Ray's makers; `0` turns the reports off."""
LOCAL: Final = "local"
"""The address of a cluster started by the driver itself on this machine; it is judged to have no open default."""


class OpenDefault(NamedTuple):
    """An unchanged default of Ray that opens a cluster to others: it accepts work from anyone, or reports its usage to
    Ray's makers.
    """

    subject: str
    """Name of the default: `authentication` or `usage reports`."""
    what: str
    """The problem in words, beginning with the variable."""
    fix: str
    """The advice: which variable to export, and where."""


def open_defaults(environ: Mapping[str, str], address: str) -> list[OpenDefault]:
    """Returns the open defaults of the cluster at `address`, assuming that its nodes were started with the variables in
    `environ`.
    """
    if address == LOCAL:
        return []
    defaults: list[OpenDefault] = []
    has_token = any(environ.get(name, "").strip() for name in TOKENS)
    mode = environ.get(MODE, "token" if has_token else "")
    if mode != "token":
        problem = f"{MODE} is {mode or 'not set'}: nodes of `ray start` accept work from anyone who reaches their ports"
        fix = f"export {MODE}=token wherever `ray start` and rftd run, with one token: ray get-auth-token --generate"
        defaults.append(OpenDefault("authentication", problem, fix))
    if environ.get(REPORTS) != "0":
        problem = f"{REPORTS} is not 0: nodes of `ray start` report their usage to Ray's makers"
        defaults.append(OpenDefault("usage reports", problem, f"export {REPORTS}=0 wherever `ray start` runs"))
    return defaults

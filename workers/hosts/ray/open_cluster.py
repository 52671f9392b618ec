"""Defaults of Ray that leave a cluster open to others, judged by the environment variables of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

MODE: Final = "RAY_AUTH_MODE"
TOKENS: Final = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
"""Ray's variables for a cluster's token, or for the path of a file with it."""
REPORTS: Final = "RAY_USAGE_STATS_ENABLED"
LOCAL: Final = "local"
"""The address of a cluster started by the driver itself, on this machine only, with both settings."""


class OpenDefault(NamedTuple):
    """An unchanged default of Ray that leaves the cluster open: its subject, the problem in words, and a fix."""

    subject: str
    what: str
    fix: str


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

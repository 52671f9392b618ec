"""`TrackerSpec`: a tracker that follows an experiment's log and shows its figures elsewhere."""

from __future__ import annotations

from typing import Any

import msgspec


class TrackerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One tracker of an experiment: the guide's `monitor_type` with its part of `monitor_args`."""

    kind: str
    args: dict[str, Any] = {}
    """Arguments without secrets."""
    variables: dict[str, str] = {}
    """Arguments whose values are in the environment: the variable of each."""
    single_run: bool = False
    """True: explorer and trainer share one run; False: the guide's two, `NAME_explorer` and `NAME_trainer`."""

"""`TrackerSpec`: a tracker following an experiment's log and showing its figures elsewhere."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

MOST_SAMPLES: Final = 64


class TrackerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One tracker of an experiment: the guide's `monitor_type` with its part of `monitor_args`."""

    kind: str
    args: dict[str, Any] = {}
    """Arguments without secrets."""
    variables: dict[str, str] = {}
    """Arguments with values in the environment: the variable of each."""
    samples: Annotated[int, Meta(ge=0, le=MOST_SAMPLES)] = 0
    """Maximum number of rows in each table of rollouts and of evaluation answers; 0: no tables."""
    sample_interval: Annotated[int, Meta(ge=1)] = 1
    """Training steps between two tables of rollouts; each evaluation has one."""
    single_run: bool = False
    """True: explorer and trainer share one run; False: the guide's two, `NAME_explorer` and `NAME_trainer`."""

"""`TrackerSpec`: a tracker that follows an experiment's log and shows its figures elsewhere."""

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
    """Arguments whose values are in the environment: the variable of each."""
    samples: Annotated[int, Meta(ge=0, le=MOST_SAMPLES)] = 0
    """The most rows of each table of rollouts and of evaluation answers; 0: there are no tables."""
    sample_interval: Annotated[int, Meta(ge=1)] = 1
    """The number of training steps from one table of rollouts to the next; each evaluation has one."""
    single_run: bool = False
    """True: explorer and trainer share one run; False: the guide's two, `NAME_explorer` and `NAME_trainer`."""

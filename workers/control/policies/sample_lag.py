"""PipelineRL's lag, counted in samples (arXiv 2509.19128, algorithms.md part 3).

    groups that may be submitted = ceil(max_lag / attempts) + groups of one update * (1 + updates announced)

The trainer takes what is there; samples older than the lag are trained and counted as stale.
"""

from __future__ import annotations

import msgspec

from rftd.streams.spec import PolicySpec
from rftd.workers.control.policies.paced import Paced, read_args
from rftd.workers.control.policies.policy import PolicyView


class SampleLagArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of `sample_lag`."""

    max_lag_samples: int = 0
    """0: one batch."""


class SampleLag(Paced):
    """Admission by samples ahead of the weights that explorers have, and no sweep."""

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__(spec)
        self._max_lag = read_args(spec, SampleLagArgs).max_lag_samples

    def most_supply(self, view: PolicyView) -> int:
        updates = 1 + view.published_version - view.first_version
        lag = self._max_lag or view.batch_size
        groups = -(-lag // view.repeat_times)
        return groups * view.repeat_times + updates * view.batch_size

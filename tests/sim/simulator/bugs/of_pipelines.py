"""Experience pipelines whose verdicts are forgotten."""

from __future__ import annotations

from typing import Any

from rftd.workers.control import closing
from simulator.bugs.bug import Bug, instead


def _answer_with_other_rewards(verdict_on: Any) -> Any:
    """The dispatcher closes groups as if every operator had kept everything."""

    def kept(group: Any) -> Any:
        verdict = verdict_on(group)
        if verdict is None or verdict.reason:
            return verdict
        changed = (type(each)(each.reward, each.masked) for each in verdict.verdicts)
        return type(verdict)(
            group=verdict.group,
            lease=verdict.lease,
            stage=verdict.stage,
            rollouts=verdict.rollouts,
            verdicts=tuple(changed),
        )

    return kept


BUGS = (
    Bug(
        "a group closes without what its pipeline dropped",
        "judged_by_its_pipeline",
        instead(closing, "verdict_on", _answer_with_other_rewards),
        mode="piped",
    ),
)

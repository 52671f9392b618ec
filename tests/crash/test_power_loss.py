"""The embedded log on a disk that loses power, and on one that fails: what was acknowledged is there, once."""

from __future__ import annotations

import apsw
import pytest

# What SQLite does not pass on, an unlock at the close for example, APSW reports in this way.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.mark.slow
def test_450_power_cuts_lose_nothing() -> None:
    from power_loss import LIVES, cut_power

    counts = cut_power(range(150))
    assert counts.broken == []
    assert counts.refused == []
    assert counts.cuts > 100 * LIVES and counts.acknowledged > 5000


def test_a_log_that_does_not_sync_its_commits_is_caught() -> None:
    """Without this, the test above could pass on a disk that loses nothing."""
    from power_loss import cut_power

    counts = cut_power(range(40), synchronous="normal")
    assert len(counts.broken) + len(counts.refused) > 10


@pytest.mark.slow
@pytest.mark.parametrize(("error", "fail_for"), [(apsw.IOError, 1), (apsw.FullError, 3)])
def test_every_operation_of_the_disk_may_fail(error: type[apsw.Error], fail_for: int) -> None:
    from nth_failure import fail_each

    counts = fail_each(error, fail_for=fail_for)
    assert counts.broken == []
    assert {"open", "read", "write", "sync", "lock"} <= counts.failed.keys()
    assert counts.refusals > counts.lives // 4

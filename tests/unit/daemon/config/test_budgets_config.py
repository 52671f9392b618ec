"""Budgets are checked when the file is submitted: a cost without a price would never be reached."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rftd.daemon.config.effective.experiment import effective_config
from rftd.daemon.config.loading import Submission, check_config
from rftd.streams.spec.sections import Budgets

Load = Callable[..., Submission]
Errors = Callable[..., list[str]]


def test_budgets_are_kept_and_shown_as_they_act(load: Load, small: str) -> None:
    spec = load(small, ["limits={hours: 1.5, tokens: 10, cost: 3, million_tokens_price: 0.5, unseen_days: 2}"]).spec
    limits = Budgets(hours=1.5, tokens=10, cost=3, million_tokens_price=0.5, unseen_days=2)
    assert spec.limits == limits
    assert check_config(effective_config(spec)).limits == limits


def test_without_budgets_none_is_shown(load: Load, small: str) -> None:
    assert "limits" not in effective_config(load(small).spec)


@pytest.mark.parametrize(
    ("written", "error"),
    [
        ("{cost: 5}", "limits.cost: is 5, but no price is set"),
        ("{million_tokens_price: 5}", "limits.million_tokens_price: is a price, but limits.cost is not set"),
        ("{hours: -1}", "limits.hours"),
        ("{hours: .inf}", "limits.hours"),
        ("{tokens: 1.5}", "limits.tokens"),
        ("{tokens: many}", "limits.tokens"),
        ("{hour: 1}", "'hours'"),
    ],
)
def test_what_means_nothing_is_refused(errors: Errors, small: str, written: str, error: str) -> None:
    assert error in "\n".join(errors(small, [f"limits={written}"]))

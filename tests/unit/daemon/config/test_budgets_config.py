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
        ("{hours: 0}", "limits.hours: should be greater than 0, got the number 0"),
        ("{hours: -1}", "fix: write more than 0, or leave it out"),
        ("{tokens: 0}", "limits.tokens: should be greater than or equal to 1, got the number 0"),
        ("{accelerator_hours: 0}", "limits.accelerator_hours: should be greater than 0"),
        ("{cost: 0, million_tokens_price: 1}", "limits.cost: should be greater than 0"),
        ("{unseen_days: -3}", "limits.unseen_days: should be greater than 0"),
        (
            "{accelerator_hour_price: -1, cost: 1}",
            "limits.accelerator_hour_price: should be greater",
        ),
        ("{hours: .inf}", "limits.hours"),
        ("{tokens: 1.5}", "limits.tokens"),
        ("{tokens: many}", "limits.tokens"),
        ("{hour: 1}", "'hours'"),
    ],
)
def test_what_means_nothing_is_refused(errors: Errors, small: str, written: str, error: str) -> None:
    assert error in "\n".join(errors(small, [f"limits={written}"]))

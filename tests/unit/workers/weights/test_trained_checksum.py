"""Exported weights are those whose checksum the ranks compared, or they are not announced."""

from __future__ import annotations

import pytest

from rftd.ops.errors import RankError
from rftd.workers.weights.checksum import trained_checksum

ONE = "0" * 32
OTHER = "1" * 32


def test_equal_weights_need_no_second_checksum() -> None:
    assert trained_checksum(ONE, ONE, exact=True, version=0) == ""


@pytest.mark.parametrize(("step", "exact"), [(ONE, False), (f"bits:{ONE}", True)])
def test_rounded_weights_and_digests_of_another_form_name_their_step(step: str, exact: bool) -> None:
    assert trained_checksum(step, OTHER, exact=exact, version=3) == step


def test_weights_that_changed_after_their_checksum_are_not_announced() -> None:
    with pytest.raises(RankError, match="the weights of version 0 changed") as error:
        trained_checksum(ONE, OTHER, exact=True, version=0)
    assert ONE in error.value.what
    assert OTHER in error.value.what

"""Checksums of weights: what changes them and what does not; exported weights have the one the ranks compared."""

from __future__ import annotations

import pytest
import torch

from rftd.ops.errors import RankError
from rftd.workers.weights.checksum import checksum, checksum_of, tensor_sums, trained_checksum
from rftd.workers.weights.torch_bytes import bytes_of

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


def weights() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {
        "b": torch.randn(4, 5, generator=generator),
        "a": torch.randn(3, generator=generator).to(torch.bfloat16),
        "scalar": torch.tensor(2.0),
        "empty": torch.zeros(0, 3),
    }


def test_order_and_layout_do_not_matter() -> None:
    one = weights()
    other = dict(reversed(one.items()))
    other["b"] = one["b"].t().contiguous().t()
    assert not other["b"].is_contiguous()
    assert checksum(bytes_of(one)) == checksum(bytes_of(other)) == checksum_of(tensor_sums(bytes_of(one)))
    assert len(checksum(bytes_of(one))) == 32


def test_every_part_matters() -> None:
    base = weights()
    changed = [
        {**base, "b": base["b"].reshape(5, 4)},
        {**base, "b": base["b"].view(torch.int32)},
        {**base, "b": base["b"].clone().index_fill_(0, torch.tensor(2), 0.0)},
        {("c" if name == "b" else name): tensor for name, tensor in base.items()},
        {name: tensor for name, tensor in base.items() if name != "empty"},
        {**base, "scalar": torch.tensor([2.0])},
    ]
    assert len({checksum(bytes_of(w)) for w in (base, *changed)}) == len(changed) + 1

"""Packing: every trained token once, whatever the micro-batches; prompts shared where that is cheaper."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rftd.ops.errors import TrainError
from rftd.workers.engines.torch.trainer.packing import PackedRows, pack
from rftd.workers.learning.engine import TrainBatch, TrainSample
from rftd.workers.learning.losses.aggregation import Aggregation


def make_sample(prompt: list[int], response: list[int], mask: list[int] | None = None) -> TrainSample:
    return TrainSample(
        tokens=np.array([*prompt, *response], np.uint32),
        prompt_tokens=len(prompt),
        loss_mask=np.array(mask or [1] * len(response), np.uint8),
    )


@settings(deadline=None)
@given(
    shapes=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=20),
    budget_tokens=st.integers(1, 200),
    share=st.booleans(),
)
def test_each_token_is_predicted_by_the_one_before_it_in_its_own_text(
    shapes: list[tuple[int, int]], budget_tokens: int, share: bool
) -> None:
    samples = [
        make_sample([100 + kind] * (kind + 1), [10 * number + i for i in range(length)])
        for number, (kind, length) in enumerate(shapes)
    ]
    packed = pack(samples, budget_tokens=budget_tokens, aggregation=Aggregation(), hidden_size=64, share=share)
    seen = []
    for batch in packed:
        assert batch.ids.size <= max(budget_tokens, batch.ids.shape[1])
        for source, target in zip(batch.source, batch.targets, strict=True):
            number, i = divmod(int(target), 10)
            before = batch.ids.ravel()[source]
            assert before == (target - 1 if i else 100 + shapes[number][0])
            assert batch.positions.ravel()[source] == shapes[number][0] + i
            seen.append(int(target))
    assert sorted(seen) == [10 * n + i for n, (_, length) in enumerate(shapes) for i in range(length)]
    assert sum(float(batch.weights.whole.sum()) for batch in packed) == pytest.approx(1.0, rel=1e-5)


@settings(deadline=None)
@given(
    texts=st.lists(
        st.tuples(st.integers(0, 2), st.lists(st.integers(0, 1), min_size=1, max_size=5), st.integers(0, 31)),
        min_size=1,
        max_size=20,
    ),
    budget_tokens=st.integers(1, 200),
    share=st.booleans(),
    cold=st.booleans(),
)
def test_a_place_sees_its_own_text_alone(
    texts: list[tuple[int, list[int], int]], budget_tokens: int, share: bool, cold: bool
) -> None:
    samples = [
        msgspec.structs.replace(
            make_sample([7, 8, 9][: prompt + 1], response, [mask >> i & 1 for i in range(len(response))]),
            temperatures=np.full(len(response), 0.0 if cold and number % 2 else 0.5),
            logprobs=np.arange(100 * number, 100 * number + len(response)).astype(np.float32),
        )
        for number, (prompt, response, mask) in enumerate(texts)
    ]
    seen = []
    for batch in pack(samples, budget_tokens=budget_tokens, aggregation=Aggregation(), hidden_size=64, share=share):
        width = batch.ids.shape[1]
        for n, (source, target) in enumerate(zip(batch.source, batch.targets, strict=True)):
            number, i = divmod(int(batch.old_logprobs[n]), 100)
            row, place = divmod(int(source), width)
            visible = np.arange(place + 1)
            if batch.ends is not None:
                visible = visible[batch.ends[row, : place + 1] > place]
            text, prompt = samples[number].tokens, samples[number].prompt_tokens
            assert [*batch.ids[row, visible], target] == text[: prompt + i + 1].tolist()
            assert batch.positions[row, visible].tolist() == list(range(prompt + i))
            seen.append((number, i))
        if batch.predictions is not None:
            first = batch.predictions.first[batch.predictions.which]
            assert len(set(batch.predictions.which)) == len(batch.predictions.first) < len(batch.source)
            for each in (batch.source, batch.targets, batch.inverse_temperature):
                np.testing.assert_array_equal(each[first], each)
    assert sorted(seen) == [(n, int(i)) for n, each in enumerate(samples) for i in np.flatnonzero(each.loss_mask)]


def packed_alone(group: list[TrainSample], *, share: bool = True) -> PackedRows:
    (batch,) = pack(group, budget_tokens=100_000, aggregation=Aggregation(), hidden_size=64, share=share)
    return batch


def test_a_group_shares_its_prompt() -> None:
    group = [make_sample([1, 2, 3, 4], [5 + i, 6]) for i in range(8)]
    shared = packed_alone(group)
    assert shared.ids.shape == (1, 12)
    assert shared.ends is not None
    apart = packed_alone(group, share=False)
    assert apart.ids.shape == (8, 5)
    assert apart.ends is None


def test_what_responses_begin_with_alike_has_one_place() -> None:
    group = [make_sample([1, 2], response) for response in ([3, 4, 5, 0], [3, 6, 0], [3, 4, 7, 0], [3, 4, 5, 0])]
    batch = packed_alone(group)
    assert batch.ids.tolist() == [[1, 2, 3, 4, 5, 7, 6]]
    assert batch.ends is not None
    assert batch.ends.tolist() == [[7, 7, 7, 6, 5, 6, 7]]
    assert batch.predictions is not None
    assert len(batch.predictions.first) == 8
    assert len(batch.targets) == 15


def test_trees_share_a_row_where_that_saves_padding() -> None:
    def group(prompt: int, width: int) -> list[TrainSample]:
        return [make_sample([prompt, 1], [10 + i, 2]) for i in range(width)]

    batch = packed_alone([*group(3, 8), *group(4, 2), *group(5, 7), *group(6, 3)])
    assert batch.ids.shape == (2, 14), "instead of (4, 10)"
    assert batch.ends is not None
    assert batch.ends[0].tolist() == [10, 10, *range(3, 11), 14, 14, 13, 14]
    assert packed_alone([*group(3, 8), *group(4, 8)]).ids.shape == (2, 10), "nothing to save"
    apart = packed_alone([make_sample([3], [1] * 9), *(make_sample([4 + i], [1]) for i in range(3))])
    assert apart.ids.shape == (4, 9), "plainly causal attention is worth more"
    assert apart.ends is None, "plainly causal attention is worth more"


def test_equal_responses_are_one_text() -> None:
    batch = packed_alone([make_sample([1], [5] * 4000) for _ in range(2)])
    assert batch.ids.shape == (1, 4000)
    assert batch.ends is None


def test_long_responses_to_a_short_prompt_are_not_joined() -> None:
    group = [make_sample([1], [5 + i] * 4000) for i in range(2)]
    assert packed_alone(group).ends is None


def make_pair(number: int, prompt: list[int], chosen: list[int], rejected: list[int]) -> list[TrainSample]:
    return [
        msgspec.structs.replace(make_sample(prompt, response), pair=number, chosen=response is chosen)
        for response in (chosen, rejected)
    ]


@settings(deadline=None)
@given(
    shapes=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=9),
    budget_tokens=st.integers(1, 120),
    share=st.booleans(),
    seed=st.integers(0, 9),
)
def test_the_responses_of_a_pair_are_never_parted(
    shapes: list[tuple[int, int, int]], budget_tokens: int, share: bool, seed: int
) -> None:
    pairs = [make_pair(n, [1] * p, [2 * n + 10] * c, [2 * n + 11] * r) for n, (p, c, r) in enumerate(shapes)]
    samples = [sample for pair in pairs for sample in pair]
    order = np.random.default_rng(seed).permutation(len(samples))
    packed = pack(
        [samples[i] for i in order],
        budget_tokens=budget_tokens,
        aggregation=Aggregation("token-mean"),
        hidden_size=64,
        share=share,
    )
    seen = []
    for batch in packed:
        assert batch.pairs is not None
        assert batch.chosen is not None
        assert batch.pairs_in_batch == len(shapes)
        assert batch.ids.size <= max(budget_tokens, 2 * batch.ids.shape[1])
        count = batch.sequences // 2
        for pair in range(count):
            members = np.flatnonzero(batch.pairs == pair)
            assert sorted(batch.chosen[members]) == [False, True]
            good, bad = (
                set(batch.targets[batch.sequence == m]) for m in sorted(members, key=lambda m: ~batch.chosen[m])
            )
            assert len(good) == len(bad) == 1, "the two of one pair"
            assert min(bad) == min(good) + 1, "the two of one pair"
            seen.append((int(min(good)) - 10) // 2)
    assert sorted(seen) == list(range(len(shapes)))


def test_a_pair_shares_its_prompt_and_no_other_pairs() -> None:
    samples = [*make_pair(0, [1] * 9, [2, 3], [4, 5]), *make_pair(1, [1] * 9, [6, 7], [8, 9])]
    (batch,) = pack(samples, budget_tokens=99, aggregation=Aggregation("token-mean"), hidden_size=64, share=True)
    assert batch.ids.shape == (2, 11)
    assert batch.ends is not None


def test_a_pair_without_trained_tokens_is_not_counted() -> None:
    empty = [
        msgspec.structs.replace(each, loss_mask=np.zeros_like(each.loss_mask)) for each in make_pair(1, [1], [4], [5])
    ]
    samples = [*make_pair(0, [1], [2], [3]), *empty]
    (batch,) = pack(samples, budget_tokens=99, aggregation=Aggregation("token-mean"), hidden_size=64, share=True)
    assert (batch.pairs_in_batch, batch.sequences) == (1, 4)


def test_half_a_pair_is_refused() -> None:
    whole = make_pair(0, [1], [2], [3])
    other = msgspec.structs.replace(whole[1], chosen=True)
    for samples in (whole[:1], [whole[0], other], [*whole, make_sample([1], [2])], [*whole, whole[0]]):
        with pytest.raises(TrainError, match="pair 0"):
            pack(samples, budget_tokens=64, aggregation=Aggregation("token-mean"), hidden_size=32, share=True)


def test_packing_is_a_function_of_the_batch(make_batch: Callable[..., TrainBatch]) -> None:
    first, second = (
        pack(make_batch(3).samples, budget_tokens=64, aggregation=Aggregation(), hidden_size=32, share=True)
        for _ in range(2)
    )
    assert len(first) == len(second) > 1
    for one, two in zip(first, second, strict=True):
        np.testing.assert_array_equal(one.ids, two.ids)
        np.testing.assert_array_equal(one.source, two.source)


@pytest.mark.parametrize(
    "sample",
    [make_sample([], [1]), make_sample([1], []), make_sample([1], [2, 3], [1])],
    ids=["prompt", "reply", "mask"],
)
def test_arrays_that_do_not_fit_are_named(sample: TrainSample) -> None:
    with pytest.raises(TrainError, match="item 0"):
        pack([sample], budget_tokens=64, aggregation=Aggregation(), hidden_size=32, share=True)

"""Options of verl's engine on four ranks: each acts, and trains what is trained without it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from synthetic.models.engine_parity import make_models
from synthetic.models.verl_options import NODE_RANKS, OPTIONS, STRATEGIES, Report, Seen, Wrote, reports

from rftd.workers.engines.learner.saving import read_tensors

RANKS = 4
ROWS = 128
"""Of the embedding."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("options")


@pytest.fixture(scope="module")
def seen(folder: Path) -> list[Report]:
    """One start of the ranks for all of the tests."""
    return reports(make_models(folder), folder, ranks=RANKS)


@pytest.mark.parametrize("option", [*OPTIONS, "bfloat16"])
def test_an_option_changes_no_result(seen: list[Report], option: str) -> None:
    plain = seen[0].options["plain"]
    close = 1e-3 if option == "bfloat16" else 1e-5
    for each in (report.options[option] for report in seen):
        assert each.losses == pytest.approx(plain.losses, abs=close)
        assert each.norms == pytest.approx(plain.norms, rel=10 * close)
        assert each.checksum == seen[0].options[option].checksum
    if option in ("recomputed", "kept whole", "on the host", "entropies again"):
        assert seen[0].options[option].checksum == plain.checksum


def test_each_option_acts_on_every_rank(seen: list[Report]) -> None:
    for report in seen:
        found = report.options
        plain = found["plain"]
        rounds = len(plain.places) // len(plain.losses)
        assert rounds > 1
        assert len(found["recomputed"].places) == 2 * len(plain.places)
        assert (plain.own_rows, found["copies"].own_rows) == (ROWS // RANKS, ROWS // 2)
        assert (plain.whole_layers, found["kept whole"].whole_layers) == (0, len(plain.places))
        # The policy's and the critic's gradients alike.
        sums = [found[name].calls["reduce_scatter_single"] for name in ("plain", "summed each time")]
        assert sums[1] == rounds * sums[0]
        moves = ("load_fsdp_model_to_gpu", "load_fsdp_optimizer")  # the way back is the same on a CPU
        assert not any(name in plain.calls for name in moves)
        assert all(found["on the host"].calls[name] > len(plain.places) for name in moves)
        # On a GPU they would lie apart, or be read before the copies to the host have come to their end.
        assert not found["on the host"].calls.get("away")
        assert "checkpoint" not in plain.calls
        assert found["entropies again"].calls["checkpoint"] > 0
        assert (plain.layer_dtype, plain.gradient_dtype) == ("torch.float32", "torch.float32")
        half = found["bfloat16"]
        assert (half.layer_dtype, half.gradient_dtype) == ("torch.bfloat16", "torch.float32")
    by_responses = [places for report in seen for places in report.options["by responses"].places]
    assert len(by_responses) > sum(len(report.options["plain"].places) for report in seen)


def test_texts_without_padding_and_in_sequences(seen: list[Report]) -> None:
    """No place is padding, or fewer than ranks share a sequence; those that do compute half of each micro-batch."""

    def places(option: str, ranks: Iterable[int]) -> int:
        return sum(sum(seen[rank].options[option].places) for rank in ranks)

    assert places("without padding", range(RANKS)) <= places("plain", range(RANKS))
    one: Seen = seen[0].options["in sequences"]
    for pair in ((0, 1), (2, 3)):
        assert seen[pair[0]].options["in sequences"].places == seen[pair[1]].options["in sequences"].places
    assert places("in sequences", range(RANKS)) < places("without padding", range(RANKS)) + RANKS * len(one.places)


def test_a_checkpoint_is_written_by_as_many_ranks_at_once_as_its_strategy_says(
    seen: list[Report], folder: Path
) -> None:
    def apart(one: Wrote, other: Wrote) -> bool:
        return one.ended_ns <= other.began_ns or other.ended_ns <= one.began_ns

    for strategy in STRATEGIES:
        files = list(zip(*(report.wrote[strategy] for report in seen), strict=True))
        assert files
        for each in files:
            for one in range(RANKS):
                for other in range(one + 1, RANKS):
                    together = strategy == "unrestricted" or (
                        strategy == "single_node" and one // NODE_RANKS == other // NODE_RANKS
                    )
                    # Those that write at once wait for one another within (`verl_options`).
                    assert apart(each[one], each[other]) != together, (strategy, one, other)
    for kind in ("model", "optimizer"):
        first, *others = (read_tensors(folder / strategy / "actor" / f"{kind}.safetensors") for strategy in STRATEGIES)
        assert len(first) > RANKS
        for tensors in others:
            assert tensors.keys() == first.keys()
            assert all(torch.equal(value, first[name]) for name, value in tensors.items())

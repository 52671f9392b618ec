"""verl trains what the torch engine trains: every algorithm, with the same batches, to rounding."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from synthetic.models.engine_parity import Case, ParityBench, all_cases, distance, make_models

CASES = all_cases([32])


@pytest.fixture(scope="module")
def benches(tmp_path_factory: pytest.TempPathFactory) -> tuple[ParityBench, ParityBench]:
    folder: Path = tmp_path_factory.mktemp("parity")
    model = make_models(folder)
    return ParityBench("torch", model, folder / "torch"), ParityBench("verl", model, folder / "verl")


@pytest.fixture(scope="module")
def two_ranks(
    benches: tuple[ParityBench, ParityBench], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ParityBench]:
    bench = ParityBench("verl", benches[0].model, tmp_path_factory.mktemp("ranks"), {"ranks": 2, "device": "cpu"})
    yield bench
    bench.engine.close()


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{case.algorithm}{case.advantage}-{case.budget_tokens}-{case.updates.epochs}"
)
def test_verl_trains_as_torch_does(benches: tuple[ParityBench, ParityBench], case: Case) -> None:
    plain, verl = benches
    apart = distance(plain.run(case), verl.run(case))
    assert apart.loss <= 1e-5
    assert apart.norm <= 1e-4
    assert apart.weights <= 1e-4


def test_a_critic_has_the_same_schedule_in_both(benches: tuple[ParityBench, ParityBench]) -> None:
    case = next(each for each in CASES if each.algorithm == "ppo")
    plain, verl = (bench.run(case).critic_rates for bench in benches)
    assert plain == verl == pytest.approx([5e-4, 1e-3, 7.75e-4, 3.25e-4, 1e-4])


@pytest.mark.parametrize("case", [each for each in CASES if each.algorithm in ("ppo", "dpo")], ids=str)
def test_two_ranks_train_as_torch_does(
    benches: tuple[ParityBench, ParityBench], two_ranks: ParityBench, case: Case
) -> None:
    apart = distance(benches[0].run(case), two_ranks.run(case))
    assert apart.loss <= 1e-5
    assert apart.norm <= 1e-4
    assert apart.weights <= 1e-4

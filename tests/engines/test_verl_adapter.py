"""A low-rank adapter on verl's ranks: trained, published, saved and taken up as the torch engine's is."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from synthetic.models.engine_parity import Case, ParityBench, all_cases, distance, make_models
from torch import Tensor
from transformers import AutoModelForCausalLM

from rftd.ops.errors import ConfigError, DataError
from rftd.storage.files.checkpoints import commit_folder, verify
from rftd.streams.spec.spec import ExperimentSpec, LoraSpec, RolloutSpec, StageSpec
from rftd.workers.engines.learner.saving import read_tensors
from rftd.workers.learning.engine import TrainerEngine
from rftd.workers.learning.engine_registry import make_engine
from rftd.workers.weights.adapter import adapted, is_adapter
from rftd.workers.weights.torch_bytes import tensors_of

LORA = LoraSpec(rank=4, alpha=8, target_modules=("q_proj", "v_proj", "down_proj"))
GRPO = Case(algorithm="grpo", budget_tokens=24)
# The reference of DPO is the adapter as it was; PPO has a critic beside, which is trained whole. All of them are
# measured by `tests/bench/verl_parity.py --lora`.
ON_TWO_RANKS = [case for case in all_cases([32]) if case.algorithm in ("ppo", "dpo")]
ON_ONE = [*ON_TWO_RANKS, *(case for case in all_cases([32]) if case.algorithm in ("sft", "on_policy_distill"))]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def plain(model: Path, tmp_path_factory: pytest.TempPathFactory) -> ParityBench:
    return ParityBench("torch", model, tmp_path_factory.mktemp("torch"), lora=LORA)


@pytest.fixture(scope="module")
def alone(model: Path, tmp_path_factory: pytest.TempPathFactory) -> ParityBench:
    return ParityBench("verl", model, tmp_path_factory.mktemp("verl"), lora=LORA)


@pytest.fixture(scope="module")
def two_ranks(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ParityBench]:
    bench = ParityBench("verl", model, tmp_path_factory.mktemp("ranks"), {"ranks": 2, "device": "cpu"}, LORA)
    yield bench
    bench.engine.close()


def opened(stage: StageSpec, model: Path) -> TrainerEngine:
    engine = make_engine(stage.trainer)
    engine.open(ExperimentSpec(project="p", name="n", job_dir="/nowhere", stages=(stage,), config={}), str(model))
    return engine


def published(engine: TrainerEngine) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in tensors_of(engine.snapshot().weights()).items()}


def saved(engine: TrainerEngine, folder: Path, *, hf: bool = False) -> Path:
    verify(folder, commit_folder(folder, lambda beside: engine.save(beside, hf=hf)))
    return folder


def assert_equal(plain: ParityBench, verl: ParityBench, case: Case) -> None:
    one = plain.run(case)
    apart = distance(one, verl.run(case))
    assert apart.loss <= 1e-5
    assert apart.norm <= 1e-4
    assert apart.weights <= 1e-4


@pytest.mark.parametrize("case", ON_ONE, ids=str)
def test_verl_trains_an_adapter_as_torch_does(plain: ParityBench, alone: ParityBench, case: Case) -> None:
    assert_equal(plain, alone, case)


@pytest.mark.parametrize("case", ON_TWO_RANKS, ids=str)
def test_two_ranks_train_an_adapter_as_torch_does(plain: ParityBench, two_ranks: ParityBench, case: Case) -> None:
    assert_equal(plain, two_ranks, case)


def test_the_base_stays_and_the_named_modules_learn(alone: ParityBench, model: Path) -> None:
    weights = alone.run(GRPO).weights
    base = dict(AutoModelForCausalLM.from_pretrained(model).named_parameters())
    moved = {name for name, value in weights.items() if not torch.equal(value, base[name])}
    assert moved == {name for name in base if name.split(".")[-2] in LORA.target_modules and name.endswith("weight")}


@pytest.mark.parametrize("before", ["torch", "alone", "two_ranks"])
def test_whatever_saved_it_any_number_of_ranks_goes_on(
    plain: ParityBench, alone: ParityBench, two_ranks: ParityBench, before: str, tmp_path: Path
) -> None:
    """Weights are the same bits on one rank and on two, though each rank merges its own rows; so is what is learned."""
    benches = {"torch": plain, "alone": alone, "two_ranks": two_ranks}
    stage = {name: bench.stage(Case(algorithm="dpo", budget_tokens=24)) for name, bench in benches.items()}
    steps = list(Case(algorithm="dpo").batches())
    first = benches[before].engine
    first.load(benches[before].start, None)
    first.begin_stage(stage[before])
    first.train(steps[0])
    kept = saved(first, tmp_path / "global_step_1")
    first.train(steps[1])
    wanted = saved(first, tmp_path / "wanted")
    checksums = set()
    for name in ("alone", "two_ranks"):
        engine = benches[name].engine
        engine.load(kept, stage[name])
        checksums.add(engine.checksum())
        engine.train(steps[1])
        found = saved(engine, tmp_path / name)
        for file in ("lora_adapter/adapter_model", "optimizer", "reference"):
            one = read_tensors(found / "actor" / f"{file}.safetensors")
            other = read_tensors(wanted / "actor" / f"{file}.safetensors")
            assert one.keys() == other.keys()
            for key, value in other.items():
                torch.testing.assert_close(one[key], value, atol=1e-6, rtol=0)
    assert len(checksums) == 1


def test_what_two_ranks_save_is_read_by_peft_and_by_transformers(
    two_ranks: ParityBench, model: Path, tmp_path: Path
) -> None:
    import peft

    two_ranks.run(GRPO)
    weights = published(two_ranks.engine)
    actor = saved(two_ranks.engine, tmp_path / "global_step_5", hf=True) / "actor"
    assert not list(actor.glob("model*"))
    base = AutoModelForCausalLM.from_pretrained(model)
    theirs = peft.PeftModel.from_pretrained(base, actor / "lora_adapter").merge_and_unload()
    for name, value in theirs.named_parameters():
        torch.testing.assert_close(weights[name], value.detach(), atol=1e-6, rtol=0)
    whole = AutoModelForCausalLM.from_pretrained(actor / "huggingface").state_dict()
    assert all(torch.equal(whole[name], value) for name, value in weights.items())


def with_lora(bench: ParityBench, lora: LoraSpec, **arguments: Any) -> StageSpec:
    stage = bench.stage(GRPO)
    return msgspec.structs.replace(
        stage,
        model=msgspec.structs.replace(stage.model, lora=lora),
        trainer=msgspec.structs.replace(stage.trainer, engine_args={**stage.trainer.engine_args, **arguments}),
    )


def test_an_adapter_goes_on_from_a_folder_and_travels_alone(
    two_ranks: ParityBench, model: Path, tmp_path: Path
) -> None:
    """Added to the base it is what explorers get merged, from two ranks as well."""
    two_ranks.run(GRPO)
    merged = published(two_ranks.engine)
    folder = saved(two_ranks.engine, tmp_path / "global_step_5") / "actor" / "lora_adapter"
    lora = msgspec.structs.replace(LORA, path=str(folder))
    engine = opened(with_lora(two_ranks, lora, lora_publish="adapter"), model)
    try:
        adapter = published(engine)
        checksum = engine.checksum()
        engine.load(saved(engine, tmp_path / "again"), None)
        assert engine.checksum() == checksum
    finally:
        engine.close()
    assert is_adapter(adapter)
    base = {name: value.detach() for name, value in AutoModelForCausalLM.from_pretrained(model).named_parameters()}
    modules = {name.rsplit(".", 1)[0] for name in adapter}
    for name, value in adapted(adapter, {f"{each}.weight": base[f"{each}.weight"] for each in modules}).items():
        torch.testing.assert_close(value, merged[name], atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_parts_are_those_of_the_whole(alone: ParityBench, model: Path, dtype: str, tmp_path: Path) -> None:
    """What ranks give part by part has the bits of a snapshot, rounded where explorers round."""
    alone.run(GRPO)
    kept = saved(alone.engine, tmp_path / "global_step_5")
    stage = alone.stage(GRPO)
    rollout = msgspec.structs.replace(RolloutSpec(), dtype=dtype)
    engine: Any = opened(msgspec.structs.replace(stage, rollout=rollout), model)
    try:
        engine.load(kept, None)
        whole = engine.snapshot().weights()
        weights = engine.spread()
        assert weights.exact == (dtype == "float32")
        parts = {shard.name: bytes(shard.data()) for shard in weights.shards()}
        assert {name: (each.dtype, each.shape) for name, each in weights.layouts().items()} == {
            name: (each.dtype, each.shape) for name, each in whole.items()
        }
        assert parts == {name: bytes(each.data) for name, each in whole.items()}
    finally:
        engine.close()


def test_the_bits_of_a_merged_row_do_not_depend_on_the_part_that_it_is_in() -> None:
    from rftd.workers.engines.verl.adapter import AdapterChange

    torch.manual_seed(1)
    weight = torch.randn(1000, 96)
    change = AdapterChange(torch.randn(4, 96), torch.randn(1000, 4), 0.5)
    whole = change.added(weight, 0)
    torch.testing.assert_close(whole, weight + 0.5 * change.high @ change.low)
    for cuts in ((0, 500, 1000), (0, 334, 668, 1000), (0, 256, 255 + 256, 1000)):
        parts = [change.added(weight[begin:end], begin) for begin, end in pairwise(cuts)]
        assert torch.equal(torch.cat(parts), whole)


def test_an_adapter_that_cannot_be_is_refused(alone: ParityBench, tmp_path: Path) -> None:
    folder = saved(alone.engine, tmp_path / "global_step_5") / "actor" / "lora_adapter"
    for lora, error, text in (
        (msgspec.structs.replace(LORA, path=str(tmp_path)), DataError, "holds no adapter"),
        (msgspec.structs.replace(LORA, path=str(folder), rank=8), DataError, "do not fit"),
        (msgspec.structs.replace(LORA, target_modules=("nothing",)), ConfigError, "no adapter can be made"),
        (msgspec.structs.replace(LORA, target_modules=("lm_head",)), ConfigError, "cannot be adapted"),
    ):
        with pytest.raises(error, match=text):
            opened(with_lora(alone, lora), alone.model)

"""The torch engine on several ranks: the same training, checkpoints that any number of ranks takes up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from synthetic.models.algorithm_batches import make_algorithm, make_samples
from synthetic.models.weight_receivers import assert_received_by_each_channel
from torch import Tensor

from rftd.ops.errors import DataError
from rftd.storage.files.checkpoints import commit_folder, files_of, verify
from rftd.streams.spec.sections import Optimizer
from rftd.streams.spec.spec import LoraSpec, StageSpec
from rftd.workers.engines.contract.trainer import TrainerBench, make_batch, trained
from rftd.workers.engines.learner.saving import read_tensors
from rftd.workers.engines.ranks.controller import RankedEngine
from rftd.workers.engines.ranks.host import RankHost
from rftd.workers.engines.ranks.nodes import RANK_NODES, RankHostPlace, RankNodes
from rftd.workers.learning.engine import TrainBatch, TrainerEngine
from rftd.workers.weights import checkpoint

STEPS = 10
KINDS = ("model", "optimizer", "reference")


@pytest.fixture(scope="module")
def benches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, TrainerBench]]:
    """A bench for each number of ranks; 0: the trainer process alone."""
    folder = tmp_path_factory.mktemp("ranks")
    made: dict[int, TrainerBench] = {}
    for ranks in (0, 2, 3):
        (folder / str(ranks)).mkdir()
        arguments: dict[str, Any] = {"ranks": ranks, "rank_timeout_s": 300.0} if ranks else {}
        model = made[0].model if made else None
        made[ranks] = TrainerBench("torch", folder / str(ranks), arguments=arguments, model=model)
    yield made
    for each in made.values():
        each.close()


def small_batches(bench: TrainerBench) -> StageSpec:
    """GRPO with a reference, in micro-batches so small that every rank has several."""
    stage = bench.stage()
    trainer = msgspec.structs.replace(stage.trainer, max_tokens_per_micro_batch=16)
    return msgspec.structs.replace(stage, trainer=trainer)


def kept(folder: Path, kind: str) -> dict[str, Tensor]:
    return read_tensors(folder / "actor" / f"{kind}.safetensors")


def assert_near(one: Path, other: Path, *, atol: float) -> None:
    for kind in KINDS:
        found = kept(one, kind)
        wanted = kept(other, kind)
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            torch.testing.assert_close(found[name], value, rtol=0, atol=atol, msg=lambda text, n=name: f"{n}: {text}")


def saved(engine: TrainerEngine, folder: Path) -> Path:
    files = commit_folder(folder, lambda beside: engine.save(beside, hf=False))
    verify(folder, files)
    return folder


@pytest.mark.slow
def test_any_number_of_ranks_goes_on_at_any_step(benches: dict[int, TrainerBench]) -> None:
    """Weights, moments, counters and reference are those of the run that was not interrupted."""
    stage = small_batches(benches[2])
    two = benches[2].opened(stage)
    alone = benches[0].opened(small_batches(benches[0]))
    three = benches[3].opened(small_batches(benches[3]))
    two.begin_stage(stage)
    folders = [saved(two, benches[2].new_folder())]
    for step in range(1, STEPS + 1):
        two.train(make_batch(step))
        folders.append(saved(two, benches[2].new_folder()))
    assert {file.path for file in files_of(folders[1])} == {
        *(f"actor/{kind}.rank_{rank}_of_2.safetensors" for kind in ("optimizer", "reference") for rank in (0, 1)),
        *(f"actor/{kind}.shards.json" for kind in ("optimizer", "reference")),
        *(f"actor/{name}" for name in ("model.safetensors", "config.json", "generation_config.json")),
        *(f"actor/{name}" for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")),
        "actor/trainer_state.json",
    }
    for step in range(STEPS):
        engine, bench = ((alone, benches[0]), (three, benches[3]))[step % 2]
        engine.load(folders[step], small_batches(bench))
        result = engine.train(make_batch(step + 1))
        assert not result.skipped
        assert_near(saved(engine, bench.new_folder()), folders[step + 1], atol=1e-6)
    # And what one process wrote is taken up by several.
    alone.load(folders[4], small_batches(benches[0]))
    two.load(saved(alone, benches[0].new_folder()), stage)
    two.train(make_batch(5))
    assert_near(saved(two, benches[2].new_folder()), folders[5], atol=1e-6)

    exported = checkpoint.export(two.snapshot().weights(), benches[2].new_folder(), version=1, generation=0)
    assert exported.checksum == two.checksum()
    assert isinstance(two, RankedEngine)
    assert_received_by_each_channel(two, benches[2].new_folder())

    shard = folders[6] / "actor" / "optimizer.rank_1_of_2.safetensors"
    shard.write_bytes(shard.read_bytes()[:-3] + b"bad")
    before = two.checksum()
    with pytest.raises(DataError, match="optimizer of rank 1 has other bytes than were written"):
        two.load(folders[6], stage)
    shard.unlink()
    with pytest.raises(DataError, match="optimizer of rank 1 is missing"):
        two.load(folders[6], stage)
    two.load(folders[4], stage)
    assert two.checksum() != before


@pytest.fixture
def two_nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The launcher has given the trainer a second node, which is this machine again."""
    host = RankHost("127.0.0.1")
    nodes = RankNodes(hosts=(RankHostPlace(address="127.0.0.1", port=host.port, key=host.key),))
    monkeypatch.setenv(RANK_NODES, msgspec.json.encode(nodes).decode())
    yield
    host.close()


@pytest.mark.slow
def test_ranks_of_two_nodes_train_as_one_process_does(two_nodes: None, benches: dict[int, TrainerBench]) -> None:
    """The figures and the weights of a stage are those of one process, but for rounding; hf folders are whole."""
    two = benches[2].opened(benches[2].stage())
    alone = benches[0].opened(benches[0].stage())
    for bench, engine in ((benches[2], two), (benches[0], alone)):
        engine.begin_stage(small_batches(bench))
    for step in range(1, 5):
        found = two.train(make_batch(step))
        wanted = alone.train(make_batch(step))
        assert found.tokens == wanted.tokens
        assert found.metrics == pytest.approx(wanted.metrics, rel=1e-4, abs=1e-6)
    # The second rank's parts come over its connection: its node does not have the file.
    exported = checkpoint.export(two.snapshot().weights(), benches[2].new_folder(), version=1, generation=0)
    assert exported.checksum == two.checksum()
    folders = [benches[2].new_folder(), benches[0].new_folder()]
    two.save(folders[0], hf=True)
    alone.save(folders[1], hf=True)
    assert not list((folders[0] / "actor").glob("model.*")), "the weights are there once"
    again = benches[0].opened(benches[0].stage(), folders[0] / "actor" / "huggingface")
    assert again.checksum() == two.checksum()
    one = read_tensors(folders[0] / "actor" / "huggingface" / "model.safetensors")
    for name, value in read_tensors(folders[1] / "actor" / "huggingface" / "model.safetensors").items():
        torch.testing.assert_close(one[name], value, rtol=0, atol=1e-5)
    assert trained(two, benches[2].stage(), range(5, 6))


def with_adapter_and_critic(bench: TrainerBench) -> StageSpec:
    """PPO of an adapter, in micro-batches so small that every rank has several."""
    stage = small_batches(bench)
    algorithm = msgspec.structs.replace(
        make_algorithm("ppo"), optimizer=Optimizer(lr=1e-2, clip_grad=1.0, decay_all=True)
    )
    model = msgspec.structs.replace(stage.model, lora=LoraSpec(rank=4, alpha=8.0))
    trainer = msgspec.structs.replace(stage.trainer, critic_path=str(bench.model))
    return msgspec.structs.replace(stage, algorithm=algorithm, model=model, trainer=trainer)


@pytest.mark.slow
def test_an_adapter_and_a_critic_learn_on_ranks_as_in_one_process(benches: dict[int, TrainerBench]) -> None:
    """The figures are those of one process, which takes up what ranks have saved."""
    stages = {ranks: with_adapter_and_critic(benches[ranks]) for ranks in (0, 2)}
    engines = {ranks: benches[ranks].opened(stage) for ranks, stage in stages.items()}
    results = []
    for ranks, engine in engines.items():
        engine.begin_stage(stages[ranks])
        results.append([engine.train(ppo_batch(step)) for step in (1, 2)])
    for alone, two in zip(*results, strict=True):
        assert two.metrics == pytest.approx(alone.metrics, rel=1e-4, abs=1e-6)
        assert "critic/values/mean" in two.metrics
    engines[0].load(saved(engines[2], benches[2].new_folder()), stages[0])
    folders = []
    for ranks, engine in engines.items():
        engine.train(ppo_batch(3))
        folders.append(saved(engine, benches[ranks].new_folder()))
    for kind in ("actor/lora_adapter/adapter_model", "actor/optimizer", "critic/model", "critic/optimizer"):
        alone, two = (read_tensors(folder / f"{kind}.safetensors") for folder in folders)
        assert two.keys() == alone.keys()
        for name, value in alone.items():
            torch.testing.assert_close(two[name], value, rtol=0, atol=1e-6, msg=lambda text, n=name: f"{n}: {text}")


def ppo_batch(step: int) -> TrainBatch:
    return TrainBatch(step=step, stage_step=step, samples=make_samples("ppo", drift=0.1 * step))

"""Megatron's layers under verl train what the torch engine trains, on one rank and with tensors cut over two."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import torch
from synthetic.models.engine_parity import Case, ParityBench, all_cases, distance, make_models
from synthetic.models.resumed_ranks import ResumeBench
from synthetic.models.weight_receivers import assert_exported_as_held, assert_received_by_each_channel
from transformers import AutoConfig, AutoModelForCausalLM

from rftd.ops.errors import ConfigError
from rftd.workers.engines.contract.trainer import MODEL_CHECKS, Check, TrainerBench, make_batch
from rftd.workers.engines.ranks.controller import RankedEngine


def make_decoder(model_type: str, beside: Path) -> Path:
    """The folder of a new model of this type in the place of the one in `beside`; norms differ from 1."""
    config = AutoConfig.for_model(
        model_type,
        vocab_size=128,
        hidden_size=32,
        intermediate_size=120,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        tie_word_embeddings=False,
        max_position_embeddings=2048,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "norm" in name:
                value.copy_(1 + 0.3 * torch.randn_like(value))
    (beside / "model.safetensors").unlink()
    model.save_pretrained(beside)
    return beside


MEGATRON: Final[Mapping[str, Any]] = {"strategy": "megatron", "device": "cpu"}
CUT: Final[Mapping[str, Any]] = {**MEGATRON, "ranks": 2, "tensor_model_parallel_size": 2}
CASES: Final = {case.algorithm: case for case in all_cases([32])[::-1]}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[TrainerBench]:
    bench = TrainerBench("verl", tmp_path, arguments=MEGATRON)
    yield bench
    bench.close()


@pytest.mark.parametrize("check", MODEL_CHECKS, ids=lambda check: check.__name__)
def test_megatron_keeps_what_every_engine_promises(check: Check, bench: TrainerBench) -> None:
    check(bench)


Benches = Callable[[Mapping[str, Any]], ParityBench]


@pytest.fixture(scope="module")
def benches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ParityBench, Benches]]:
    """The torch engine, and verl with arguments; all with the model that the engines' parity is held with."""
    folder = tmp_path_factory.mktemp("parity")
    model = make_models(folder)
    made: dict[str, ParityBench] = {}

    def with_arguments(arguments: Mapping[str, Any]) -> ParityBench:
        name = f"verl-{arguments.get('ranks', 1)}"
        if name not in made:
            made[name] = ParityBench("verl", model, folder / name, arguments)
        return made[name]

    yield ParityBench("torch", model, folder / "torch"), with_arguments
    for each in made.values():
        each.engine.close()


def _alike(plain: ParityBench, other: ParityBench, case: Case) -> None:
    apart = distance(plain.run(case), other.run(case))
    assert apart.loss <= 1e-5
    assert apart.norm <= 1e-4
    assert apart.weights <= 1e-4


@pytest.mark.parametrize("arguments", [MEGATRON, CUT], ids=["one", "two"])
@pytest.mark.parametrize("algorithm", ["ppo", "opmd", "clip_cov", "jsd", "sft", "dpo"])
def test_megatron_trains_as_torch_does(
    benches: tuple[ParityBench, Benches], arguments: Mapping[str, Any], algorithm: str
) -> None:
    plain, with_arguments = benches
    _alike(plain, with_arguments(arguments), CASES[algorithm])


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_other_decoders_are_cut_as_well(kind: str, tmp_path: Path) -> None:
    # Qwen3 has norms over each head, whose gradient every rank knows a part of; both have an output layer of their own.
    model = make_decoder(kind, make_models(tmp_path))
    cut = ParityBench("verl", model, tmp_path / "cut", CUT)
    try:
        _alike(ParityBench("torch", model, tmp_path / "torch"), cut, CASES["dpo"])
    finally:
        cut.engine.close()


def test_a_run_goes_on_from_fsdp2_with_megatron_and_back(tmp_path: Path) -> None:
    """What two ranks hold of tensors that are cut along columns too comes whole to explorers and to transformers."""
    steps = 2
    bench = ResumeBench("verl", make_models(tmp_path), tmp_path, {**CUT})
    try:
        found = list(bench.apart(steps))
        cut = bench.engines[2]
        assert isinstance(cut, RankedEngine)
        assert_received_by_each_channel(cut, tmp_path / "sent")
        assert_exported_as_held(cut, tmp_path / "exported")
    finally:
        bench.close()
    assert len(found) == 4 * steps
    for each in found:
        most = 0.0 if each.before == each.after else 1e-6
        assert each.weights <= most, each
        assert each.moments <= most, each


def test_bfloat16_computes_what_float32_does_roughly(tmp_path: Path) -> None:
    norms: dict[str, list[float]] = {}
    for dtype in ("float32", "bfloat16"):
        bench = TrainerBench("verl", tmp_path / dtype, arguments=MEGATRON)
        bench.trainer = msgspec.structs.replace(bench.trainer, dtype=dtype)
        stage = bench.stage("sft")
        engine = bench.opened(stage)
        engine.begin_stage(stage)
        norms[dtype] = [engine.train(make_batch(step)).metrics["actor/grad_norm"] for step in range(1, 4)]
        bench.close()
    assert norms["bfloat16"] != norms["float32"]
    assert norms["bfloat16"] == pytest.approx(norms["float32"], rel=0.02)


@pytest.mark.parametrize(
    ("arguments", "field", "words"),
    [
        ({"tensor_model_parallel_size": 2}, "tensor_model_parallel_size", "does not divide 1 ranks"),
        ({"use_remove_padding": True}, "use_remove_padding", "transformer-engine computes on GPUs alone"),
        ({"gradient_checkpointing": True}, "gradient_checkpointing", "on a GPU alone"),
        ({"param_offload": True}, "param_offload", "Megatron has no such thing"),
        ({"fsdp_size": 1}, "fsdp_size", "Megatron has no such thing"),
    ],
)
def test_sizes_that_cannot_be_are_refused_with_the_field(
    tmp_path: Path, arguments: Mapping[str, Any], field: str, words: str
) -> None:
    bench = TrainerBench("verl", tmp_path, arguments={**MEGATRON, **arguments})
    with pytest.raises(ConfigError, match=words) as caught:
        bench.opened(bench.stage())
    assert caught.value.field == f"trainer.engine_args.{field}"

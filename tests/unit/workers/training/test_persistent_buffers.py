"""What does not learn and yet belongs to the weights travels with them: to explorers, into checkpoints and folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from synthetic.models.tiny_models import MAX_LEN, network_of, prompts_of, run, running
from transformers import AutoConfig, AutoModelForCausalLM

from rftd.ops.errors import RolloutError
from rftd.streams.spec.spec import ExperimentSpec, LoraSpec, StageSpec
from rftd.workers.engines.learner.model import buffers_of
from rftd.workers.engines.torch.rollout.batch import Batch
from rftd.workers.engines.torch.rollout.trial import try_model
from rftd.workers.engines.torch.trainer.engine import TorchTrainerEngine
from rftd.workers.models.tiny_model import VOCABULARY_TOKENS, make_tokenizer
from rftd.workers.weights import checkpoint
from rftd.workers.weights.torch_bytes import tensors_of

Make = Callable[..., Any]
_COMMON: dict[str, object] = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
_COMMON |= {"num_key_value_heads": 2, "intermediate_size": 64, "max_position_embeddings": 256}
_EXPERTS: dict[str, object] = {"num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_routed_experts": 8}
_EXPERTS |= {"first_k_dense_replace": 1, "n_group": 2, "topk_group": 1}
_LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 12}
_PER_LAYER = {"vocab_size_per_layer_input": VOCABULARY_TOKENS, "hidden_size_per_layer_input": 8}
BUFFERED: dict[str, dict[str, object]] = {
    "gemma4_text": {**_PER_LAYER, "head_dim": 12, "global_head_dim": 12, "sliding_window": 9},
    "glm4_moe": {**_EXPERTS, "head_dim": 12},
    "deepseek_v3": {**_EXPERTS, **_LATENT, "num_key_value_heads": 4},
    "minimax_m2": {"head_dim": 12, "num_local_experts": 4, "num_experts_per_tok": 2},
    "apertus": {"max_position_embeddings": 16384},
}


def model_folder(folder: Path, kind: str, *, seed: int) -> Path:
    """A tiny sharp model of the type whose buffers are numbers of their own."""
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = AutoConfig.for_model(kind, vocab_size=VOCABULARY_TOKENS, **{**_COMMON, **BUFFERED[kind]}, **ids)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
        for tensor in (*model.parameters(), *buffers_of(model).values()):
            tensor.data.add_(torch.randn_like(tensor) * 0.15)
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def opened(folder: Path, stage: StageSpec) -> TorchTrainerEngine:
    engine = TorchTrainerEngine(threads=1)
    experiment = ExperimentSpec(
        project="p", name="n", job_dir="/nowhere", stages=(stage,), deterministic=True, config={}
    )
    engine.open(experiment, str(folder))
    engine.begin_stage(stage)
    return engine


def adapted(stage: StageSpec) -> StageSpec:
    lora = LoraSpec(rank=4, target_modules=("q_proj", "o_proj", "q_a_proj"))
    return msgspec.structs.replace(stage, model=msgspec.structs.replace(stage.model, lora=lora))


@pytest.mark.parametrize("kind", BUFFERED)
@pytest.mark.parametrize("lora", [False, True])
def test_new_weights_are_exact_in_the_rollout_engine(
    tmp_path: Path, make_stage: Make, make_batch: Make, kind: str, lora: bool
) -> None:
    """Through the channel, into an engine that was opened with other numbers, against the folder for transformers."""
    trained, other = (model_folder(tmp_path / name, kind, seed=seed) for name, seed in (("one", 1), ("two", 2)))
    engine = opened(trained, adapted(make_stage()) if lora else make_stage())
    engine.train(make_batch())
    exported = checkpoint.export(engine.snapshot().weights(), tmp_path / "v1", version=1, generation=0)
    network = network_of(other)
    try_model(network)
    network.assign(network.verified(tensors_of(checkpoint.read(Path(exported.path))[1])))
    batch = Batch(network, slots=4, max_len=MAX_LEN, deterministic=True)
    batch.swapped((1, 0))
    engine.save(tmp_path / "saved", hf=True)
    model = AutoModelForCausalLM.from_pretrained(
        tmp_path / "saved" / "actor" / "huggingface", dtype=torch.float32, attn_implementation="eager"
    )
    prompts = prompts_of(4, seed=1)
    found = run(batch, [running(i, p, max_tokens=20, min_tokens=20) for i, p in enumerate(prompts)])
    for i, prompt in enumerate(prompts):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([[*prompt, *found[i].tokens]])).logits[0, len(prompt) - 1 : -1]
        expected = torch.log_softmax(logits, -1).gather(1, torch.tensor(found[i].tokens)[:, None])[:, 0]
        assert found[i].logprobs == pytest.approx(expected.tolist(), abs=1e-4)


def test_a_buffer_that_new_weights_lack_is_named(tmp_path: Path, make_stage: Make) -> None:
    folder = model_folder(tmp_path, "minimax_m2", seed=1)
    tensors = opened(folder, make_stage()).tensors()
    name = "model.layers.1.mlp.e_score_correction_bias"
    with pytest.raises(RolloutError, match=f"lack '{name}'"):
        network_of(folder).verified({key: value for key, value in tensors.items() if key != name})


@pytest.mark.parametrize("hf", [False, True])
def test_a_checkpoint_restores_buffers(tmp_path: Path, make_stage: Make, make_batch: Make, hf: bool) -> None:
    stage = make_stage(kl_coef=0.1)
    one, two = (model_folder(tmp_path / name, "glm4_moe", seed=seed) for name, seed in (("one", 1), ("two", 2)))
    engine, resumed = opened(one, stage), opened(two, stage)
    engine.train(make_batch(1))
    engine.save(tmp_path / "saved", hf=hf)
    assert resumed.checksum() != engine.checksum()
    resumed.load(tmp_path / "saved", stage)
    assert resumed.checksum() == engine.checksum()
    for each in (engine, resumed):
        each.train(make_batch(2))
    assert resumed.checksum() == engine.checksum()
    if hf:
        return
    actor = tmp_path / "saved" / "actor"
    found = AutoModelForCausalLM.from_pretrained(actor).state_dict()  # type: ignore[no-untyped-call]
    assert found.keys() == engine.tensors().keys()

"""Trainer, rollout engine and transformers give one text one log-probability, whatever the architecture, or say no.

Texts are longer than window, chunk and original length; the rollouts are those after a weight update in flight.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch
from synthetic.models.families import FAMILIES
from synthetic.models.tiny_models import MAX_LEN, make_model, network_of, prompts_of, run, running, slow_but
from transformers import AutoModelForCausalLM

from rftd.ops.errors import DataError, RolloutError
from rftd.streams.spec.sections import Optimizer
from rftd.streams.spec.spec import AlgorithmSpec, ExperimentSpec, ModelSpec, StageSpec, TrainerSpec
from rftd.workers.engines.torch.rollout.network import Network
from rftd.workers.engines.torch.rollout.trial import try_model
from rftd.workers.engines.torch.rollout.uncached import Way, batch_of
from rftd.workers.engines.torch.trainer.engine import TorchTrainerEngine, shares_prefixes
from rftd.workers.engines.torch.trainer.forward import logprobs_of
from rftd.workers.engines.torch.trainer.packing import pack
from rftd.workers.learning.engine import TrainBatch, TrainSample
from rftd.workers.learning.losses.aggregation import Aggregation

NATS: Final = 1e-4
NOT_TRAINED: Final = """
dynamic_moving longrope_moving
"""
"""Refused by name: rotations that depend on length."""
NOT_ROLLED_OUT: Final = """
dynamic_moving longrope_moving
"""
"""Refused by name: rotations that depend on length."""
OWN_CACHE: Final = """
doge falcon_h1 falcon_mamba jamba lfm2 llama4_tuned mamba mamba2 minimax phimoe_sliding qwen3_5_text qwen3_next
"""
"""Each request alone, in transformers' own cache: recurrent states, positions that a model counts, masks of its own."""
RECOMPUTED: Final = """
bloom codegen diffllama falcon gpt_neo gpt_neox_japanese gptj mpt nemotron openai-gpt recurrent_gemma xglm
"""
"""Each request alone, its text computed again for each token: most of these have an attention of their own, and
transformers' cache cuts theirs at the `sliding_window` that they have here and do not use."""
QUICK: Final = "qwen2 gemma2 deepseek_v3 mamba bloom dynamic_moving"
"""One family of each way to be computed or refused, for the inner loop."""

STAGE: Final = StageSpec(
    name="sft",
    kind="train",
    total_steps=10,
    batch_size=4,
    train_batch_size=4,
    algorithm=AlgorithmSpec(
        kind="sft",
        advantage="none",
        policy_loss="sft",
        loss_agg_mode="token-mean",
        optimizer=Optimizer(optimizer_type="sgd", lr=0.05, weight_decay=0.0, clip_grad=1.0),
    ),
    model=ModelSpec(path="", max_model_len=MAX_LEN, max_prompt_tokens=40, max_response_tokens=40),
    trainer=TrainerSpec(max_tokens_per_micro_batch=4096),
)


@pytest.mark.parametrize("family", slow_but(QUICK, FAMILIES))
def test_all_agree_or_the_model_is_refused_by_name(tmp_path: Path, family: str) -> None:
    kind = str(FAMILIES[family]["model_type"])
    folder = make_model(tmp_path / "model", FAMILIES[family], seed=4)
    reference: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    trainer = opened(folder, kind)
    loads = loaded(folder, kind)
    assert (trainer is None) == (family in NOT_TRAINED.split())
    assert (loads is None) == (family in NOT_ROLLED_OUT.split())
    if trainer is not None:
        trainer.train(TrainBatch(step=1, stage_step=1, samples=[sample(text, len(text) // 2) for text in texts()]))
        tensors = {name: tensor.clone() for name, tensor in trainer.tensors().items()}
    else:
        tensors = {name: tensor + 0.01 for name, tensor in reference.state_dict().items()}
    reference.load_state_dict(tensors, strict=False)
    drawn = [(text, len(text) // 2) for text in texts()]
    if loads is not None:
        network, way = loads
        assert (way is Way.OWN_CACHE) == (family in OWN_CACHE.split())
        assert (way is Way.RECOMPUTED) == (family in RECOMPUTED.split())
        drawn = []
        for prompt, tokens, logprobs in rolled_out(network, way, tensors):
            drawn.append(((*prompt, *tokens), len(prompt)))
            expected = alone(reference, *drawn[-1])
            assert logprobs == pytest.approx(expected.tolist(), abs=NATS)
    if trainer is not None:
        torch.testing.assert_close(
            packed(trainer, drawn), torch.cat([alone(reference, *one) for one in drawn]), atol=NATS, rtol=0.0
        )


def opened(folder: Path, kind: str) -> TorchTrainerEngine | None:
    """The trainer in its stage; None if it refuses the model by its type."""
    engine = TorchTrainerEngine(threads=1)
    experiment = ExperimentSpec(
        project="p", name="n", job_dir="/nowhere", stages=(STAGE,), deterministic=True, config={}
    )
    try:
        engine.open(experiment, str(folder))
    except DataError as error:
        assert kind in error.what
        return None
    engine.begin_stage(STAGE)
    return engine


def loaded(folder: Path, kind: str) -> tuple[Network, Way] | None:
    """The rollout engine's network, and how it runs; None if it refuses the model by its type."""
    try:
        network = network_of(folder)
        return network, try_model(network)
    except (DataError, RolloutError) as error:
        assert kind in error.what
        return None


def rolled_out(
    network: Network, way: Way, tensors: Mapping[str, torch.Tensor]
) -> list[tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]]:
    """Prompts, tokens and log-probabilities of requests that joined after new weights did, beside older ones."""
    batch = batch_of(network, way, slots=6, max_len=MAX_LEN, deterministic=False)
    batch.swapped((0, 0))
    prompts = prompts_of(10, seed=2, longest=30)
    sampling = {"max_tokens": 45, "min_tokens": 45}
    older = [running(i, prompt, **{**sampling, "max_tokens": 12}) for i, prompt in enumerate(prompts[:6])]
    newer = [running(6 + i, prompt, **sampling) for i, prompt in enumerate(prompts[6:])]

    def swap(step: int) -> None:
        if step == 3:
            network.assign(tensors)
            batch.swapped((1, 0))

    found = run(batch, [*older, *newer], between=swap)
    assert [span.version for span in found[0].spans] == [0, 1]
    return [(prompts[i], found[i].tokens, found[i].logprobs) for i in range(6, 10)]


def texts() -> list[tuple[int, ...]]:
    rng = np.random.default_rng(5)
    return [tuple(rng.integers(7, 105, length).tolist()) for length in (MAX_LEN, 60, 41, 12)]


def sample(text: tuple[int, ...], prompt: int) -> TrainSample:
    return TrainSample(
        tokens=np.array(text, np.uint32), prompt_tokens=prompt, loss_mask=np.ones(len(text) - prompt, np.uint8)
    )


@torch.no_grad()
def packed(trainer: TorchTrainerEngine, drawn: list[tuple[tuple[int, ...], int]]) -> torch.Tensor:
    """The trainer's log-probabilities of the responses, in their order, computed beside each other  # [N]"""
    model = trainer._open_policy.model
    batches = pack(
        [sample(*one) for one in drawn],
        budget_tokens=4096,
        aggregation=Aggregation("token-mean"),
        hidden_size=model.config.hidden_size,
        share=shares_prefixes(model, STAGE),
    )
    assert len(batches) == 1
    logprobs = torch.split(
        logprobs_of(model, batches[0], torch.device("cpu"))[0], np.bincount(batches[0].sequence).tolist()
    )
    # Rows are ordered by their length.
    order = np.argsort([len(text) for text, _ in drawn], kind="stable")
    return torch.cat([logprobs[int(place)] for place in np.argsort(order)])


@torch.no_grad()
def alone(model: torch.nn.Module, text: tuple[int, ...], prompt: int) -> torch.Tensor:
    """What transformers gives the response in a row of its own  # [R]"""
    ids = torch.tensor([text])
    logprobs = torch.log_softmax(model(input_ids=ids, use_cache=False).logits[0, prompt - 1 : -1].float(), -1)
    return logprobs.gather(1, ids[0, prompt:, None])[:, 0]

"""The torch trainer against transformers' own forwards, and the trial at opening that refuses what differs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from synthetic.models.tiny_models import MOVING, make_model
from transformers import AutoConfig, AutoModelForCausalLM

from rftd.ops.errors import DataError
from rftd.streams.spec.sections import Optimizer
from rftd.streams.spec.spec import ExperimentSpec, StageSpec
from rftd.workers.engines.torch.trainer import engine as engine_module
from rftd.workers.engines.torch.trainer import forward
from rftd.workers.engines.torch.trainer.engine import TorchTrainerEngine
from rftd.workers.engines.torch.trainer.token_logprobs import PLAIN as PLAIN_LOGITS
from rftd.workers.learning.engine import TrainBatch

Make = Callable[..., Any]
PLAIN = Optimizer(optimizer_type="sgd", lr=1.0, weight_decay=0.0, clip_grad=0.0)
"""One step subtracts the gradient."""
_COMMON: dict[str, object] = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
_COMMON |= {"num_key_value_heads": 2, "intermediate_size": 64, "max_position_embeddings": 512}
_BIASED: dict[str, dict[str, object]] = {
    "phi": {},
    "phimoe": {"num_local_experts": 4, "lm_head_bias": True, "attention_bias": True},
    "ernie4_5_moe": {"use_bias": True, "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32},
}
_RECURRENT: dict[str, object] = {"lru_width": 48, "attention_window_size": 16, "num_hidden_layers": 3}
_FORMED: dict[str, dict[str, object]] = {
    "recurrent_gemma": {**_RECURRENT, "logits_soft_cap": 2.0},
    "modernbert-decoder": {"local_attention": 8, "global_attn_every_n_layers": 2},
    "gemma2": {"head_dim": 12, "final_logit_softcapping": 3.0, "attn_logit_softcapping": 5.0},
    "granite": {"logits_scaling": 4.0},
    "cohere": {"logit_scale": 0.25},
}


def model_folder(folder: Path, kind: str, **settings: object) -> Path:
    """A tiny model of the type, sharp, with biases that are no zeros."""
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = AutoConfig.for_model(kind, vocab_size=128, **{**_COMMON, **settings}, **ids)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = AutoModelForCausalLM.from_config(config)
        for parameter in model.parameters():
            parameter.data.add_(torch.randn_like(parameter) * 0.15)
    model.save_pretrained(folder)
    return folder


def opened(folder: Path, stage: StageSpec) -> TorchTrainerEngine:
    engine = TorchTrainerEngine(threads=1)
    engine.open(experiment(stage), str(folder))
    return engine


def experiment(*stages: StageSpec) -> ExperimentSpec:
    return ExperimentSpec(project="p", name="n", job_dir="/nowhere", stages=stages, deterministic=True, config={})


def long_texts(stage: StageSpec) -> StageSpec:
    return msgspec.structs.replace(stage, model=msgspec.structs.replace(stage.model, max_model_len=400))


def sft_gradient(folder: Path, batch: TrainBatch) -> dict[str, torch.Tensor]:
    """The gradient of minus the mean log-probability of the trained tokens, one text at a time with the whole model."""
    policy: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    total, count = torch.zeros(()), sum(int(sample.loss_mask.sum()) for sample in batch.samples)
    for sample in batch.samples:
        ids = torch.tensor(sample.tokens.astype(np.int64))[None]
        logits = policy(input_ids=ids).logits[0, sample.prompt_tokens - 1 : -1]
        chosen = torch.log_softmax(logits, -1).gather(1, ids[0, sample.prompt_tokens :, None])[:, 0]
        total = total - (chosen * torch.tensor(sample.loss_mask)).sum() / count
    total.backward()  # type: ignore[no-untyped-call]
    return {name: value.grad for name, value in policy.named_parameters() if value.grad is not None}


def assert_loads(engine: TorchTrainerEngine, saved: Path) -> None:
    """A checkpoint without a folder for transformers is one itself: the weights are those of the engine."""
    engine.save(saved, hf=False)
    model: Any = AutoModelForCausalLM.from_pretrained(saved / "actor")
    found = model.state_dict()
    for name, value in engine.tensors().items():
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize("kind", _BIASED)
def test_the_outputs_bias_counts_and_learns(tmp_path: Path, make_stage: Make, make_batch: Make, kind: str) -> None:
    folder, stage = model_folder(tmp_path, kind, **_BIASED[kind]), make_stage("sft", optimizer=PLAIN)
    engine = opened(folder, stage)
    engine.begin_stage(stage)
    assert "lm_head.bias" in engine.tensors()
    before = {name: value.clone() for name, value in engine.tensors().items()}
    engine.train(make_batch())
    for name, expected in sft_gradient(folder, make_batch()).items():
        torch.testing.assert_close(before[name] - engine.tensors()[name], expected, rtol=1e-4, atol=5e-6)
    assert_loads(engine, tmp_path / "saved")


@pytest.mark.parametrize("kind", _FORMED)
def test_logits_that_are_scaled_capped_or_made_by_two_layers_learn(
    tmp_path: Path, make_stage: Make, make_batch: Make, kind: str
) -> None:
    folder = model_folder(tmp_path, kind, **_FORMED[kind])
    stage = make_stage("sft", optimizer=PLAIN)
    engine = opened(folder, stage)
    engine.begin_stage(stage)
    before = {name: value.clone() for name, value in engine.tensors().items()}
    engine.train(make_batch())
    for name, expected in sft_gradient(folder, make_batch()).items():
        torch.testing.assert_close(before[name] - engine.tensors()[name], expected, rtol=1e-4, atol=5e-6)
    assert_loads(engine, tmp_path / "saved")


@pytest.fixture
def no_form_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a model does with its logits stands in no list of settings."""
    monkeypatch.setattr(forward, "logit_form", lambda config: PLAIN_LOGITS)


@pytest.mark.usefixtures("no_form_known")
def test_a_model_that_does_more_with_its_logits_is_refused(tmp_path: Path, make_stage: Make) -> None:
    """Only the trial finds it."""
    folder = model_folder(tmp_path, "gemma2", **_FORMED["gemma2"])
    with pytest.raises(DataError, match=r"cannot train gemma2 models: .* differ .* by up to [0-9.]+ nats"):
        opened(folder, long_texts(make_stage()))


def test_a_window_is_not_lost_where_prompts_are_shared(tmp_path: Path, make_stage: Make) -> None:
    """A mask of pairs replaces the window. It is found only by a text that is longer."""
    folder = model_folder(tmp_path, "mistral", sliding_window=100)
    stage = long_texts(make_stage(prefix_sharing="always"))
    with pytest.raises(DataError, match=r"cannot train mistral models: .* differ") as raised:
        opened(folder, stage)
    assert raised.value.where == str(folder)
    opened(folder, long_texts(make_stage()))
    with pytest.raises(DataError, match="mistral"):  # a later stage counts too
        engine = TorchTrainerEngine(threads=1)
        engine.open(experiment(long_texts(make_stage()), stage), str(folder))


@pytest.mark.parametrize("turning", MOVING)
def test_rotations_that_depend_on_length_are_refused_beyond_their_own(
    tmp_path: Path, make_stage: Make, turning: str
) -> None:
    """A text would have other log-probabilities in a row beside a longer one."""
    for tokens, beyond in ((399, True), (400, False)):
        folder = make_model(tmp_path / str(tokens), MOVING[turning](tokens), seed=3)
        if not beyond:
            opened(folder, long_texts(make_stage()))
            continue
        with pytest.raises(DataError, match=f"its rotary embedding '{turning}' .* longer than {tokens} ") as raised:
            opened(folder, long_texts(make_stage()))
        assert raised.value.fix == f"set model.max_model_len to at most {tokens}, or use another model"


def test_a_window_beyond_the_first_text_is_reached_too(tmp_path: Path, make_stage: Make) -> None:
    folder = model_folder(tmp_path, "mistral", sliding_window=440)
    stage = make_stage(prefix_sharing="always")
    longer = msgspec.structs.replace(stage, model=msgspec.structs.replace(stage.model, max_model_len=450))
    opened(folder, long_texts(stage))
    with pytest.raises(DataError, match=r"cannot train mistral models: .* differ .* of a text of 450"):
        opened(folder, longer)


def test_a_model_without_what_the_engine_asks_for_is_refused_by_name(tmp_path: Path, make_stage: Make) -> None:
    settings = {"state_size": 8, "conv_kernel": 4, "expand": 2, "time_step_rank": 4}
    folder = model_folder(tmp_path, "mamba", **settings)
    with pytest.raises(DataError, match="cannot train mamba models") as raised:
        opened(folder, make_stage(prefix_sharing="always"))  # it takes no mask of pairs
    assert "prefix_sharing" in str(raised.value.fix)


def test_a_model_with_one_kind_of_attention_is_tried_as_it_is(tmp_path: Path, make_stage: Make) -> None:
    folder = model_folder(tmp_path, "mpt", d_model=48, n_heads=4, n_layers=2)
    opened(folder, long_texts(make_stage()))


@pytest.mark.usefixtures("no_form_known")
def test_a_teacher_is_tried_too(tmp_path: Path, tiny_model: Path, make_stage: Make) -> None:
    folder = model_folder(tmp_path, "gemma2", **_FORMED["gemma2"])
    stage = make_stage()
    algorithm = msgspec.structs.replace(stage.algorithm, advantage="on_policy_distill")
    trainer = msgspec.structs.replace(stage.trainer, teacher_path=str(folder))
    stage = msgspec.structs.replace(stage, algorithm=algorithm, trainer=trainer)
    engine = opened(tiny_model, stage)
    with pytest.raises(DataError, match="gemma2"):
        engine.begin_stage(stage)


def test_the_trial_leaves_no_trace(
    monkeypatch: pytest.MonkeyPatch, tiny_model: Path, make_stage: Make, make_batch: Make
) -> None:
    """Neither in the generator of random numbers nor in the weights of later steps."""
    torch.manual_seed(11)
    state = torch.get_rng_state()
    tried = opened(tiny_model, make_stage())
    assert torch.equal(torch.get_rng_state(), state)
    assert tried._open_policy.model.config._attn_implementation == "sdpa"
    monkeypatch.setattr(engine_module, "try_forward", lambda *_, **__: None)
    untried = opened(tiny_model, make_stage())
    for engine in (tried, untried):
        engine.begin_stage(make_stage())
        engine.train(make_batch(1))
    assert tried.checksum() == untried.checksum()

"""The device that is named is the one that the engine computes on, with every tensor of a step on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from synthetic.models.tiny_models import MAX_LEN, prompts_of, running
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoConfig, AutoModelForCausalLM

from rftd.ops.clock import ManualClock
from rftd.ops.errors import ConfigError
from rftd.streams.spec.spec import AlgorithmSpec, ExperimentSpec, ModelSpec, RolloutSpec, StageSpec
from rftd.workers.engines.torch.rollout import batch as batch_module
from rftd.workers.engines.torch.rollout import cache, draw, network, recordings, responses
from rftd.workers.generation import engine_registry as registry

ModelOf = Callable[[str], Path]
CUDA = torch.device("cuda")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "deterministic", "recorded"),
    [
        *(
            (family, fixed, False)
            for family in ("qwen2", "gpt_neox", "gemma2", "llama4_chunked")
            for fixed in (False, True)
        ),
        ("qwen2", False, True),
    ],
)
def test_a_step_mixes_no_devices(
    monkeypatch: pytest.MonkeyPatch, model_of: ModelOf, architecture: str, deterministic: bool, recorded: bool
) -> None:
    """An operation over two devices raises on this GPU of tensors without numbers, as it would on a real one."""
    folder = model_of(architecture)
    read: list[torch.device] = []

    class Read:
        """Tokens that were drawn, of which nothing is known."""

        def __init__(self, tokens: torch.Tensor, logprobs: torch.Tensor, processed: torch.Tensor) -> None:
            read.extend((tokens.device, logprobs.device, processed.device))
            self._count = len(tokens)

        def read(self) -> tuple[list[int], list[float], list[float]]:
            return [30] * self._count, [-1.0] * self._count, [-0.5] * self._count

    def sent(numbers: Any, device: torch.device) -> torch.Tensor:
        made = torch.from_numpy(np.asarray(numbers))
        return torch.empty(made.shape, dtype=made.dtype, device=device)

    monkeypatch.setattr(batch_module, "Drawn", Read)
    for module in (batch_module, cache, draw, network, recordings, responses):
        monkeypatch.setattr(module, "to_device", sent)
    monkeypatch.setattr(recordings.FixedSteps, "_addresses", lambda _steps: [])  # tensors without numbers lie nowhere
    with FakeTensorMode(allow_non_fake_inputs=True), torch.inference_mode():
        network.attention.register()
        config = AutoConfig.from_pretrained(folder)
        model = AutoModelForCausalLM.from_config(config, attn_implementation=network.attention.NAME)
        monkeypatch.setattr(model, "to", lambda device: onto(device, model))
        monkeypatch.setattr(network, "read_model", lambda *_, **__: model)
        loaded = network.Network.load(str(folder), max_len=MAX_LEN, dtype="float32", device=CUDA)
        recorder = Repeater() if recorded else None
        batch = batch_module.Batch(loaded, slots=8, max_len=MAX_LEN, deterministic=deterministic, recorder=recorder)
        batch.swapped((0, 0))
        settings: list[dict[str, Any]] = [{"temperature": 0.0}, {"top_p": 0.9, "top_k": 5}, {"min_tokens": 4}, {}]
        asked = [each | {"processed_logprobs": True} for each in settings]
        batch.join([running(i, prompt, max_tokens=6 + i, **asked[i]) for i, prompt in enumerate(prompts_of(4))])
        while batch.live:
            batch.step()
    assert {device.type for device in read} == {"cuda"}
    assert {tensor.device.type for tensor in loaded.model.state_dict().values()} == {"cuda"}


class Repeater:
    """Implements `Recorder`: computes each step anew."""

    def record(self, step: recordings.Step) -> recordings.Step:
        return step

    def forget(self) -> None:
        pass


def onto(device: torch.device, model: torch.nn.Module) -> None:
    """Moves a model whose tensors have no numbers: its own `to` exchanges them in a way that those do not know."""
    moved: dict[int, Any] = {}
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                if tensor is None:
                    continue
                if id(tensor) not in moved:
                    there: Any = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
                    is_weight = isinstance(tensor, torch.nn.Parameter)
                    moved[id(tensor)] = torch.nn.Parameter(there, requires_grad=False) if is_weight else there
                held[name] = moved[id(tensor)]


@pytest.mark.anyio
async def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch, model_of: ModelOf) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    stage = StageSpec(
        name="rft",
        kind="both",
        total_steps=1,
        batch_size=1,
        train_batch_size=1,
        algorithm=AlgorithmSpec(kind="grpo", advantage="grpo", policy_loss="ppo"),
        model=ModelSpec(path=str(model_of("qwen2")), max_model_len=64, max_prompt_tokens=32, max_response_tokens=32),
        rollout=RolloutSpec(engine="torch", engine_args={"device": "cuda"}),
    )
    experiment = ExperimentSpec(
        project="p", name="n", job_dir="/nowhere", stages=(stage,), deterministic=False, config={}
    )
    with pytest.raises(ConfigError, match=r"the device is 'cuda', and torch .* finds none") as raised:
        await registry.open_engine(experiment, stage, slots=1, clock=ManualClock())
    assert raised.value.field == "explorer.rollout_model.extra_engine_args.device"


def test_another_device_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match="the torch engine does not take") as raised:
        registry.check_engine(RolloutSpec(engine="torch", engine_args={"device": "gpu"}))
    assert "device" in str(raised.value.fix)

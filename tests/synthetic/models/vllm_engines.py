"""A vLLM engine on a CPU, for tests: models that it can run, and what transformers says of what it drew."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psutil
import pytest
import torch
from safetensors.torch import load_file
from synthetic.models.tiny_models import make_model
from transformers import AutoModelForCausalLM, DynamicCache

from rftd.ops.clock import SystemClock
from rftd.streams.spec.engines import AuxiliarySpec, EngineNeeds
from rftd.streams.spec.spec import AlgorithmSpec, ExperimentSpec, LoraSpec, ModelSpec, RolloutSpec, StageSpec
from rftd.workers.datasets.message import Message
from rftd.workers.generation.auxiliary import own_engine
from rftd.workers.generation.auxiliary.auxiliary_model import AuxiliaryModel
from rftd.workers.generation.auxiliary.rollout_models import AuxiliaryModels
from rftd.workers.generation.endpoint.server import ModelEndpoint
from rftd.workers.generation.engine import Generation, GenerationRequest, RolloutEngine, Sampling
from rftd.workers.generation.engine_definition import EngineOpening
from rftd.workers.generation.engine_registry import open_engine
from rftd.workers.weights.channel import ChannelPlace, WeightsRef
from rftd.workers.weights.registry import CHANNELS
from rftd.workers.weights.torch_bytes import bytes_of

if TYPE_CHECKING:
    from rftd.workers.engines.vllm.engine import VllmRolloutEngine

MAX_MODEL_LEN = 256
CACHE_BYTES = 256 << 20
WATCHED_WORKER = "synthetic.models.vllm_watched_worker.WatchedWorker"
"""By name, for it is imported where vLLM is."""
_SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
# vLLM's attention on a CPU has heads of 32, and none of 16.
_SIZES |= {"head_dim": 32, "intermediate_size": 96, "max_position_embeddings": 512}
MODELS: dict[str, dict[str, object]] = {
    "tied, biases": {"model_type": "qwen2", **_SIZES, "tie_word_embeddings": True},
    "untied, biases": {"model_type": "qwen2", **_SIZES, "tie_word_embeddings": False},
    "tied, no biases": {"model_type": "llama", **_SIZES, "tie_word_embeddings": True},
    "untied, no biases": {"model_type": "llama", **_SIZES, "tie_word_embeddings": False},
}
_ON_TWO = ", two workers"
KINDS = (*MODELS, f"untied, no biases{_ON_TWO}", f"tied, biases{_ON_TWO}")
"""Models, and how many processes an engine shares each out among: one, where a kind does not say."""


def make_vllm_model(folder: Path, *, seed: int, kind: str = "tied, biases", size_mb: int = 0) -> Path:
    """A model folder that vLLM's CPU build can run: a tiny one, or of about so many megabytes in float32."""
    return make_model(
        folder, {**MODELS[kind.removesuffix(_ON_TWO)], **(_sizes_of(size_mb) if size_mb else {})}, seed=seed
    )


def workers_of(kind: str) -> int:
    """The number of processes that each layer of the model is shared out among."""
    return 2 if kind.endswith(_ON_TWO) else 1


def _sizes_of(size_mb: int) -> dict[str, object]:
    """Few wide layers: vLLM works on each alone, and two cores go through all of them in a fraction of a second."""
    width = 1024
    layer_bytes = 4 * (4 * width**2 + 3 * width * 4 * width)
    sizes = {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": size_mb * 10**6 // layer_bytes}
    return {**sizes, "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": width // 8}


async def open_vllm(model: Path, *, slots: int, watched: bool = False) -> VllmRolloutEngine:
    """The engine as an explorer opens it, with a small cache; a `watched` one has a `WatchedWorker`."""
    from rftd.workers.engines.vllm import arguments
    from rftd.workers.engines.vllm.arguments import ENGINE, VllmArgs
    from rftd.workers.engines.vllm.engine import VllmRolloutEngine

    lengths = {"max_model_len": MAX_MODEL_LEN, "max_prompt_tokens": 200, "max_response_tokens": 200}
    opening = EngineOpening(
        model=ModelSpec(path=str(model), **lengths),
        rollout=RolloutSpec(engine="vllm", dtype="float32"),
        arguments=VllmArgs(kv_cache_memory_bytes=CACHE_BYTES),
        slots=slots,
        threads=1,
        clock=SystemClock(),
        folder=model.parent / "engine",
    )
    with pytest.MonkeyPatch.context() as patch:
        if watched:
            patch.setattr(arguments, "WORKER", WATCHED_WORKER)
        engine = await ENGINE.open(opening)
    assert isinstance(engine, VllmRolloutEngine)
    return engine


@asynccontextmanager
async def opened_as_auxiliary(
    model: Path, endpoint: ModelEndpoint, *, slots: int, kind: str
) -> AsyncIterator[tuple[AuxiliaryModel, VllmRolloutEngine]]:
    """An auxiliary model with a vLLM engine of its own, which its first question opened, and that engine, watched."""
    from rftd.workers.engines.vllm import arguments as vllm_arguments

    lengths = {"max_model_len": MAX_MODEL_LEN, "max_prompt_tokens": 200, "max_response_tokens": 200}
    arguments = {"kv_cache_memory_bytes": CACHE_BYTES}
    spec = AuxiliarySpec(
        name="judge",
        engine="vllm",
        path=str(model),
        concurrency=slots,
        engine_args=arguments,
        needs=EngineNeeds(tensor_parallel_size=workers_of(kind)),
        **lengths,
    )
    stage = StageSpec(
        name="one",
        kind="both",
        total_steps=1,
        batch_size=1,
        train_batch_size=1,
        algorithm=AlgorithmSpec(kind="grpo"),
        model=ModelSpec(path=str(model), **lengths),
        auxiliary=(spec,),
    )
    job = ExperimentSpec(project="p", name="n", job_dir=str(model.parent / "job"), stages=(stage,), config={})
    engines: list[Any] = []

    async def noted(*given: Any, **more: Any) -> RolloutEngine:
        engines.append(await open_engine(*given, **more))
        return engines[-1]

    models = AuxiliaryModels(job, clock=SystemClock(), environ={}, random=Random(1), endpoint=endpoint)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own_engine, "open_engine", noted)
        patch.setattr(vllm_arguments, "WORKER", WATCHED_WORKER)
        running = asyncio.ensure_future(models.run())
        try:
            (judge,) = models.of(stage, UUID(int=1), UUID(int=1)).models
            await judge.chat((Message("user", "1+1="),))
            (engine,) = engines
            yield judge, engine
        finally:
            running.cancel()
            await asyncio.wait([running])


class Policies:
    """Versions of one tiny model, or one of a size: published as a trainer would, and known to transformers."""

    def __init__(self, folder: Path, kind: str, *, size_mb: int = 0) -> None:
        self.folder = folder
        self.base = make_vllm_model(folder / "base", seed=1, kind=kind, size_mb=size_mb)
        self._models: dict[int, Any] = {}

    def publish(self, version: int, method: str = "memory", *, change: float = 0.05) -> WeightsRef:
        """The weights of this version, a step away from the base; for `adapter` an adapter in memory."""
        if method == "adapter":
            return self._publish_adapter(version, change=change)
        tensors = load_file(self.base / "model.safetensors")
        noise = torch.Generator().manual_seed(1000 + version)
        for name in sorted(tensors):
            if version:
                tensors[name] = tensors[name] + change * torch.randn(tensors[name].shape, generator=noise)
        model = AutoModelForCausalLM.from_pretrained(self.base, dtype=torch.float32, attn_implementation="eager")
        # Strictly, but for what is tied.
        unfilled = model.load_state_dict(tensors, strict=False)
        assert not unfilled.unexpected_keys
        assert set(unfilled.missing_keys) <= {"lm_head.weight"}
        self._models[version] = model
        return self.announce(tensors, version, method)

    def announce(self, tensors: Mapping[str, torch.Tensor], version: int, method: str = "memory") -> WeightsRef:
        place = ChannelPlace(job_dir=str(self.folder), memory_dir=str(self.folder))
        channel = CHANNELS.open(method, {"place": place})
        held = channel.publish(bytes_of(tensors), version=version, generation=0)
        return WeightsRef(
            version=version,
            generation=0,
            path=held.path,
            manifest=held.manifest,
            checksum=held.checksum,
            method=method,
            host=held.host,
        )

    def _publish_adapter(self, version: int, *, change: float) -> WeightsRef:
        """An adapter of this version as the trainer publishes it; peft computes what it changes, without merging it."""
        from rftd.workers.engines.torch.trainer.adapter import Adapter

        model = AutoModelForCausalLM.from_pretrained(self.base, dtype=torch.float32, attn_implementation="eager")
        adapter = Adapter(model, self.base, LoraSpec(rank=4, alpha=8), seed=version, merged=False)
        noise = torch.Generator().manual_seed(1000 + version)
        for name, value in adapter.parameters().items():
            if "lora_B" in name:  # a fresh one is zero, and changes nothing
                value.data.copy_(2 * change * torch.randn(value.shape, generator=noise))
        self._models[version] = adapter.model
        return self.announce(adapter.published(), version)

    @torch.no_grad()
    def logprobs(self, request: GenerationRequest, drawn: Generation, spans: Any = None) -> list[float]:
        """What transformers gives each token, at the request's temperature, under the weights of its span.

        Keys and values of a span stay as its weights computed them.
        """
        ids = torch.tensor([[*request.prompt, *drawn.tokens]])
        temperature = request.sampling.temperature or 1.0
        cache = DynamicCache()
        fed = 0
        found: list[float] = []
        for span in spans or drawn.spans:
            until = len(request.prompt) + span.end - 1
            output = self._models[span.version](input_ids=ids[:, fed:until], past_key_values=cache, use_cache=True)
            length = span.end - span.start
            logprobs = (output.logits[0, -length:].float() / temperature).log_softmax(-1)
            tokens = torch.tensor(drawn.tokens[span.start : span.end])
            found += logprobs.gather(1, tokens[:, None])[:, 0].tolist()
            fed = until
        return found

    def error(self, request: GenerationRequest, drawn: Generation, spans: Any = None) -> float:
        """The largest difference of a log-probability from transformers."""
        expected = self.logprobs(request, drawn, spans)
        return max(abs(a - b) for a, b in zip(expected, drawn.logprobs, strict=True))


def prompts(count: int, lengths: Sequence[int] = range(4, 61), *, seed: int = 0) -> list[tuple[int, ...]]:
    """Random prompts of these lengths, of ids that any of the models has."""
    chance = Random(seed)
    return [tuple(chance.randrange(7, 120) for _ in range(chance.choice(lengths))) for _ in range(count)]


def ask(number: int = 0, *, prompt: tuple[int, ...] = (20, 30, 40), **sampling: Any) -> GenerationRequest:
    settings: dict[str, Any] = {"max_tokens": 24, "min_tokens": 24, "seed": number, **sampling}
    return GenerationRequest(id=UUID(int=number), prompt=prompt, sampling=Sampling(**settings))


def stays(pid: int) -> bool:
    """True of a process that lives, or that ended and is this one's to collect; grandchildren are collected by init."""
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE or process.ppid() == os.getpid()
    except psutil.NoSuchProcess:
        return False


def exchanged_by(pids: Sequence[int]) -> list[str]:
    """The lines of their maps that name a segment through which vLLM's workers exchange tensors."""
    maps = "".join(Path(f"/proc/{pid}/maps").read_text() for pid in pids)
    return [line for line in maps.splitlines() if "-cpushm" in line]


def sockets_in(folder: str) -> list[Path]:
    """The sockets by which vLLM's processes meet."""
    return [path for path in Path(folder).glob("*") if path.is_socket()]

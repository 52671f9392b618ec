"""A model that generates: `explorer.rollout_model`, and each of `explorer.auxiliary_models`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rftd.daemon.config.schema.section import Args, Count, LocalPath, Natural, Section, Seed, Share, Url, inert, word

Engine = Annotated[Literal["vllm", "torch", "openai", "fake", "tinker", "sglang", "external"], word(vllm_async="vllm")]


class RolloutModel(Section):
    """An inference engine and how often it runs."""

    model_path: str | None = inert(None, why="explorers generate with the model that is trained")
    name: str | None = inert(None)
    engine_type: Engine = "vllm"
    engine_num: Count = 1
    tensor_parallel_size: Count = 1
    data_parallel_size: Count = 1
    pipeline_parallel_size: Count = 1
    enable_expert_parallel: bool = inert(False)
    extra_engine_args: Args = {}
    use_v1: bool = inert(True)
    enforce_eager: bool = inert(False)
    enable_prefix_caching: bool = inert(True)
    enable_chunked_prefill: bool = inert(True)
    gpu_memory_utilization: Share = inert(0.9)
    dtype: Annotated[Literal["bfloat16", "float16", "float32", "auto"], word()] = "bfloat16"
    seed: Seed = inert(42, why="rollouts are drawn by the experiment's seed")
    temperature: Annotated[float, Field(ge=0)] | None = inert(None)
    top_p: Annotated[float, Field(gt=0, le=1)] | None = inert(None)
    top_k: int | None = inert(None)
    logprobs: Natural | None = inert(None)
    max_model_len: Count | None = inert(None)
    max_prompt_tokens: Count | None = inert(None)
    max_response_tokens: Count | None = inert(None)
    min_response_tokens: Natural | None = inert(None)
    enable_prompt_truncation: bool | None = inert(None)
    repetition_penalty: float | None = inert(None)
    ignore_eos: bool = inert(False)
    enable_multimodal: bool = inert(False)
    chat_template: str | None = inert(None)
    enable_thinking: bool | None = inert(None)
    enable_history: bool = inert(False)
    enable_openai_api: bool = inert(False)
    enable_log_requests: bool = inert(False)
    base_port: Natural | None = inert(None)
    api_key: Url = inert("EMPTY")
    enable_auto_tool_choice: bool = inert(False)
    tool_call_parser: str | None = inert(None)
    reasoning_parser: str | None = inert(None)
    nnodes: Count = inert(1)
    node_rank: Natural = inert(0)
    enable_return_routed_experts: bool = inert(False)
    weight_sync_buffer_size: Natural = inert(1024)


class AuxiliaryModel(RolloutModel):
    """A model beside the one that is trained: the first is the teacher of an algorithm that has one."""

    model_path: Annotated[str | None, LocalPath()] = None

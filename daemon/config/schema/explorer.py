"""Section `explorer`: how tasks are rolled out, and the generating models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from rftd.daemon.config.schema.section import (
    Args,
    Count,
    LocalPath,
    Natural,
    Seconds,
    Section,
    Seed,
    Tokens,
    Url,
    acts_later,
    checked,
    declared,
    harmless,
    refused,
    section,
    word,
)
from rftd.streams.spec.declaration import ADDRESS, ARGUMENTS, PLAIN, PLUGIN, URL, VARIABLE, InUnit, Upstream
from rftd.streams.spec.sections import DynamicTimeout, OverRollout, StragglerReissue
from rftd.workers.generation.sampling import HIGHEST_PENALTY

Engine = Annotated[str, word(vllm_async="vllm")]
"""A registered rollout engine, or the guide's name of an engine."""
_LENGTHS = "explorers and trainer share the same lengths"
"""Reason for refusing lengths of an engine."""
_PER_REQUEST_REASON = "set per request by the calling workflow or reward"
"""Reason for refusing sampling settings of an auxiliary model."""
_FORMS = "answers are passed to programs as text, with tool calls in Hermes format"
"""Reason for refusing parsers of an auxiliary model."""
_SMALL = "not supported for auxiliary models"
"""Reason for settings of an auxiliary model without effect."""
_ALWAYS = "the log-probability of each sampled token is always recorded"
"""Reason for the setting of log-probabilities without effect."""


class RolloutModel(Section):
    """The inference engine of the explorers, and the number of engines."""

    model_path: Annotated[str | None, LocalPath()] = refused(
        None,
        why="explorers use the trained model",
        fix="write it in model.model_path",
        same_as="model.model_path",
    )
    name: Annotated[str | None, PLAIN] = harmless(None)
    engine_type: Annotated[Engine, Upstream("Defaults to vLLM on every machine."), PLUGIN] = "vllm"
    """Engine that generates: `vllm`, `torch`, `external`, or the name of a plug-in; if not set: vLLM on a GPU,
    otherwise torch."""
    engine_num: Count = 1
    """Number of explorers, each a process with its own engine; at most 16."""
    tensor_parallel_size: Count = 1
    """vLLM: tensor-parallel GPUs (each layer is split across them)."""
    data_parallel_size: Annotated[Count, Upstream("Values above 1 are supported.")] = 1
    """vLLM: copies of the model in one engine; values above 1 are refused, use `engine_num` instead."""
    pipeline_parallel_size: Annotated[Count, Upstream("Values above 1 are supported.")] = 1
    """vLLM: pipeline-parallel GPUs; values above 1 are refused."""
    enable_expert_parallel: bool = False
    """vLLM: true places whole experts on different GPUs."""
    extra_engine_args: Annotated[Args, ARGUMENTS] = {}
    """Further arguments of the engine, under the engine's own names."""
    use_v1: bool = harmless(True, why="V1 is vLLM's only engine")
    enforce_eager: bool = False
    """vLLM: true runs without CUDA graphs."""
    enable_prefix_caching: Annotated[bool, Upstream("False in the guide's release.")] = True
    """vLLM: cache common prefixes of prompts."""
    enable_chunked_prefill: Annotated[bool, Upstream("False in the guide's release.")] = True
    """vLLM: compute long prompts in chunks, together with the decoding of other requests."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    """vLLM: share of the GPU's memory for the engine."""
    max_num_seqs: Count | None = None
    """vLLM: maximum number of concurrent requests; none: as many as an explorer runs at once."""
    max_num_batched_tokens: Tokens | None = None
    """vLLM: maximum number of tokens per pass."""
    start_timeout: Seconds | None = None
    """rftd only: time-out for starting an explorer with its engine; none: the engine's default."""
    dtype: Annotated[
        Literal["bfloat16", "float16", "float32", "auto"],
        word(),
        Upstream("Defaults to `bfloat16` on every device."),
    ] = "bfloat16"
    """Number format of the explorers' weights; if not set: `float32` on a CPU."""
    seed: Seed = harmless(42, why="rollouts use the experiment's seed")
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    """Overrides `model.temperature`; none: no override."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Overrides `model.top_p`; none: no override."""
    top_k: Annotated[int, Field(ge=-1)] | None = None
    """Overrides `model.top_k`; none: no override."""
    logprobs: Natural | None = harmless(None, why=_ALWAYS)
    max_model_len: Tokens | None = refused(None, why=_LENGTHS, fix="write it in model", same_as="model.max_model_len")
    max_prompt_tokens: Tokens | None = refused(
        None, why=_LENGTHS, fix="write it in model", same_as="model.max_prompt_tokens"
    )
    max_response_tokens: Tokens | None = refused(
        None, why=_LENGTHS, fix="write it in model", same_as="model.max_response_tokens"
    )
    min_response_tokens: Annotated[Natural, InUnit("tokens")] | None = refused(
        None, why=_LENGTHS, fix="write it in model", same_as="model.min_response_tokens"
    )
    enable_prompt_truncation: bool | None = refused(
        None, why=_LENGTHS, fix="write it in model", same_as="model.enable_prompt_truncation"
    )
    repetition_penalty: Annotated[float, Field(gt=0, le=HIGHEST_PENALTY)] | None = None
    """Overrides `model.repetition_penalty`; none: no override."""
    ignore_eos: bool = False
    """true: applies to every taskset."""
    enable_multimodal: bool = refused(False, why="only text prompts are supported")
    chat_template: Annotated[str | None, PLAIN] = None
    """Overrides `model.custom_chat_template`; none: no override."""
    enable_thinking: bool | None = None
    """Overrides `model.enable_thinking`; none: no override."""
    enable_history: bool = acts_later(False, why="every answer is recorded as part of its rollout, even if false")
    enable_openai_api: bool = harmless(False, why="the endpoint for agent programs and mode serve is always available")
    enable_log_requests: bool = harmless(False, why="the log stores every request")
    base_port: Natural | None = harmless(None, why="ports are assigned automatically")
    api_key: Annotated[Url, VARIABLE] = harmless("EMPTY", why="built-in engines do not listen on the network")
    enable_auto_tool_choice: Annotated[bool | None, Upstream("Trinity-RFT's default is false.")] = None
    """true or none: tool calls are parsed whenever tools are offered."""
    tool_call_parser: Annotated[str | None, Upstream("Without a parser, tool calls are not parsed."), PLUGIN] = None
    """Format of the model's tool calls; none: `hermes`."""
    reasoning_parser: Annotated[str | None, PLUGIN] = None
    """Format of the model's reasoning, which is then returned separately; none: it stays in the text."""
    nnodes: Count = refused(1, why="an engine runs on one machine")
    node_rank: Natural = harmless(0, why="an engine runs on one machine")
    enable_return_routed_experts: bool = refused(False, why="routed experts are not recorded")
    weight_sync_buffer_size: Annotated[Natural, InUnit("MB")] = harmless(1024)


class AuxiliaryModel(RolloutModel):
    """An additional model for workflows and rewards, in the explorers or on a service.

    The first one is the teacher of an algorithm with a teacher.
    """

    model_path: Annotated[str | None, LocalPath()] = None
    """Folder of the model; required unless a service is used."""
    name: Annotated[str | None, PLAIN] = None
    """Name by which workflows and rewards refer to the model; none: derived from the model's name."""
    engine_type: Annotated[Engine, Upstream("Trinity-RFT's default is `vllm`."), PLUGIN] = "torch"
    """Engine in each explorer, or `external` for a service; if not set: vLLM if there are enough GPUs for all engines
    and the trainer, otherwise torch."""
    model_name: Annotated[str | None, PLAIN] = None
    """rftd only, with `engine_type: external`: the service's name of the model."""
    base_url: Annotated[Url, URL] = None
    """rftd only: URL of the service up to `/v1`, or `{env: NAME}`."""
    api_key: Annotated[Url, VARIABLE] = "EMPTY"
    """`{env: NAME}`, or `EMPTY` for a service without keys."""
    repetition_penalty: float | None = refused(None, why=_PER_REQUEST_REASON)
    min_response_tokens: Annotated[Natural, InUnit("tokens")] | None = refused(None, why=_PER_REQUEST_REASON)
    enable_prompt_truncation: bool | None = refused(None, why="prompts that are too long are refused")
    ignore_eos: bool = refused(False, why=_PER_REQUEST_REASON)
    enable_history: bool = refused(False, why="only answers of the trained model are part of a rollout")
    enable_thinking: bool | None = None
    """Variable of the chat template; not used with a service, which applies its own template."""
    enable_auto_tool_choice: Annotated[bool | None, Upstream("Trinity-RFT's default is false.")] = refused(
        None, why=_FORMS
    )
    tool_call_parser: Annotated[str | None, PLUGIN] = refused(None, why=_FORMS)
    reasoning_parser: Annotated[str | None, PLUGIN] = refused(None, why=_FORMS)
    enable_expert_parallel: bool = harmless(False, why=_SMALL)
    enable_prefix_caching: bool = harmless(True, why=_SMALL)
    enable_chunked_prefill: bool = harmless(True, why=_SMALL)
    max_num_batched_tokens: Tokens | None = harmless(None, why=_SMALL)
    start_timeout: Seconds | None = harmless(None, why="the model is loaded together with its explorer")
    engine_num: Count = 1
    """Engines of all explorers together, equally many in each; a rollout uses the least busy one of its explorer."""
    tensor_parallel_size: Count = 1
    """vLLM: tensor-parallel GPUs of the engine in each explorer; torch uses one device."""
    data_parallel_size: Annotated[Count, Upstream("Values above 1 are supported.")] = 1
    """Values above 1 are refused with vLLM on GPUs; with torch, that many GPUs are left free."""
    pipeline_parallel_size: Annotated[Count, Upstream("Values above 1 are supported.")] = 1
    """Values above 1 are refused with vLLM on GPUs; with torch, that many GPUs are left free."""
    extra_engine_args: Annotated[Args, ARGUMENTS] = {}
    """Further arguments of the engine, or of the requests to a service."""
    dtype: Annotated[
        Literal["bfloat16", "float16", "float32", "auto"],
        word(),
        Upstream("Defaults to `bfloat16`."),
    ] = "bfloat16"
    """Number format of the weights; if not set: `bfloat16` with vLLM on GPUs, otherwise `float32`."""
    max_num_seqs: Count | None = None
    """Maximum number of concurrent requests; none: 16."""
    chat_template: Annotated[str | None, PLAIN] = None
    """Chat template, as text, instead of the model's own."""
    max_model_len: Tokens | None = None
    """Maximum number of tokens of prompt and response together; none: `model.max_model_len`."""
    max_prompt_tokens: Tokens | None = None
    """Maximum number of tokens of a prompt; none: the remainder after the response."""
    max_response_tokens: Tokens | None = None
    """Maximum number of tokens of a response; none: `model.max_response_tokens`."""


if not TYPE_CHECKING:
    # Sections with the attributes of the declarations.
    OverRollout = declared(OverRollout)
    DynamicTimeout = declared(DynamicTimeout)
    StragglerReissue = declared(StragglerReissue)


class Explorer(Section):
    """`explorer`: how tasks are rolled out, and the generating models."""

    name: Annotated[str, PLAIN] = harmless("explorer")
    runner_per_model: Count = 8
    """Concurrent rollouts per explorer."""
    runner_prepare_concurrency: Count = harmless(8, why="runners need no preparation")
    runner_prepare_max_retries: Natural = harmless(2, why="runners need no preparation")
    max_timeout: Annotated[Seconds, Upstream("The guide shows 900.")] = 1800.0
    """Time-out of one attempt at a rollout."""
    max_retry_times: Natural = 2
    """Retries of a rollout that fails or times out."""
    env_vars: Annotated[dict[str, Any], Upstream("Secrets may be written as plain text."), VARIABLE] = {}
    """Environment variables (text or number) of explorers and their child processes; a secret is `{env: NAME}` and is
    read on the explorer's machine."""
    concurrent_mode: Annotated[Literal["sequential", "asynchronous", "multi-threading"], word()] = "sequential"
    """`sequential`: a runner executes one rollout at a time; otherwise all rollouts of its lease at once, in one event
    loop (`asynchronous`) or one thread each (`multi-threading`)."""
    max_repeat_times_per_runner: Count | None = None
    """Maximum number of a task's rollouts per lease; none: all together."""
    rollout_model: RolloutModel = section(RolloutModel)
    auxiliary_models: list[AuxiliaryModel] = []
    eval_interval: Annotated[Natural, InUnit("steps")] = 100
    """Steps between evaluations, rounded down to a synchronisation; 0 = only at the beginning and the end."""
    eval_on_startup: bool = True
    """Evaluate the base model, too."""
    bench_on_latest_checkpoint: bool = acts_later(False, why="the daemon chooses the checkpoints to evaluate")
    """true: mode bench evaluates only the newest checkpoint of an experiment in the folder; false: all of them."""
    proxy_port: Natural = 8010
    """Port for clients with `mode: serve`; 0: any free port."""
    listen_address: Annotated[str, Upstream("Trinity-RFT's default is `0.0.0.0`, all interfaces."), ADDRESS] = (
        "127.0.0.1"
    )
    """Address for clients with `mode: serve`; addresses other than loopback require a key."""
    service_status_check_interval: Seconds = harmless(60.0, why="failed engines are detected at once")
    min_running_model_num: Count = checked(
        1, why="with mode serve, all engines keep answering, because weights change between two tokens"
    )
    db_url: Annotated[Url, URL] = harmless(None, why="the log stores all served answers")
    over_rollout: OverRollout = section(OverRollout)
    dynamic_timeout: DynamicTimeout = section(DynamicTimeout)
    straggler_reissue: StragglerReissue = section(StragglerReissue)
    runner_state_report_interval: Annotated[float, Field(ge=0), InUnit("s")] = harmless(0.0)
    eval_engine: Annotated[Literal["shared", "own"], word()] | None = None
    """rftd only: evaluations share the engine of the rollouts, or use a separate one (`own`); none: shared, except in
    deterministic runs."""
    collect_only: bool = False
    """rftd only, with `mode: explore` or `serve`: no training; the run ends when every task has been rolled out."""
    max_inflight_batches: Count = 2
    """Number of batches that explorers may run ahead with `fully_async`."""

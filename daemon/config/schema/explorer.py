"""Section `explorer`: how tasks are tried, and the models that generate."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from rftd.daemon.config.schema.section import (
    Args,
    Count,
    InUnit,
    LocalPath,
    Natural,
    Seconds,
    Section,
    Seed,
    Tokens,
    Url,
    checked,
    harmless,
    refused,
    section,
    word,
)
from rftd.workers.rollout.sampling import HIGHEST_PENALTY

Engine = Annotated[str, word(vllm_async="vllm")]
"""A rollout engine that is registered, or one of the guide's."""
_LENGTHS = "explorers and trainer share one set of lengths"
_ASKED = "whoever asks the model says so"
_FORMS = "programs are told its answers as text, and calls of tools in the form of Hermes"
_SMALL = "an auxiliary model's engine is on one device, and is not tuned"
_ALWAYS = "the log-probability of each sampled token is always kept"


class RolloutModel(Section):
    """An inference engine and how often it runs."""

    model_path: Annotated[str | None, LocalPath()] = refused(
        None,
        why="explorers generate with the model that is trained",
        fix="write it in model.model_path",
        same_as="model.model_path",
    )
    name: str | None = harmless(None)
    engine_type: Engine = "vllm"
    """Not written: vLLM on a GPU, else torch."""
    engine_num: Count = 1
    tensor_parallel_size: Count = 1
    data_parallel_size: Count = 1
    pipeline_parallel_size: Count = 1
    enable_expert_parallel: bool = False
    extra_engine_args: Args = {}
    use_v1: bool = harmless(True, why="vLLM has no other engine any more")
    enforce_eager: bool = False
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    max_num_seqs: Count | None = None
    """vLLM's: the most requests in one pass; None: as many as an explorer runs at once."""
    max_num_batched_tokens: Tokens | None = None
    """vLLM's: the most tokens in one pass."""
    start_timeout: Seconds | None = None
    """rftd's own: the longest start of an explorer with its engine; None: the engine's usual one."""
    dtype: Annotated[Literal["bfloat16", "float16", "float32", "auto"], word()] = "bfloat16"
    seed: Seed = harmless(42, why="rollouts are drawn by the experiment's seed")
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    """This and the settings of the same names below stand in the place of those of `model`; None: as there."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
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
    ignore_eos: bool = False
    """True: of every taskset, as if its `rollout_args` said so."""
    enable_multimodal: bool = refused(False, why="models are asked with text alone")
    chat_template: str | None = None
    """In the place of `model.custom_chat_template`."""
    enable_thinking: bool | None = None
    """In the place of `model.enable_thinking`."""
    enable_history: bool = refused(False, why="every answer is part of its rollout, and no workflow reads a history")
    enable_openai_api: bool = harmless(False, why="agent programs and mode serve have it without")
    enable_log_requests: bool = harmless(False, why="the log keeps every request")
    base_port: Natural | None = harmless(None, why="ports are chosen")
    api_key: Url = harmless("EMPTY", why="an engine of ours has no address")
    enable_auto_tool_choice: bool | None = None
    """True or None: calls are looked for wherever tools are offered. The guide's default is False."""
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    nnodes: Count = refused(1, why="an engine is on one machine")
    node_rank: Natural = harmless(0, why="an engine is on one machine")
    enable_return_routed_experts: bool = refused(False, why="the experts that a token took are not recorded")
    weight_sync_buffer_size: Annotated[Natural, InUnit("MB")] = harmless(1024)


class AuxiliaryModel(RolloutModel):
    """A model beside the one that is trained, for workflows and rewards to ask, in the explorers or at a service.

    The first is the teacher of an algorithm that has one.
    """

    model_path: Annotated[str | None, LocalPath()] = None
    name: str | None = None
    engine_type: Engine = "torch"
    """The guide's default is vllm."""
    model_name: str | None = None
    """rftd's own, with `engine_type: external`: what the service calls the model."""
    base_url: Url = None
    """rftd's own: the service's address up to `/v1`, or `{env: NAME}`."""
    api_key: Url = "EMPTY"
    """`{env: NAME}`, or `EMPTY` for a service that wants none."""
    repetition_penalty: float | None = refused(None, why=_ASKED)
    min_response_tokens: Annotated[Natural, InUnit("tokens")] | None = refused(None, why=_ASKED)
    enable_prompt_truncation: bool | None = refused(None, why="a prompt that is too long is refused")
    ignore_eos: bool = refused(False, why=_ASKED)
    enable_thinking: bool | None = None
    """A variable of its chat template, with an engine of its own: a service fills its template in by itself."""
    enable_auto_tool_choice: bool | None = refused(None, why=_FORMS)
    tool_call_parser: str | None = refused(None, why=_FORMS)
    reasoning_parser: str | None = refused(None, why=_FORMS)
    enable_expert_parallel: bool = harmless(False, why=_SMALL)
    enable_prefix_caching: bool = harmless(True, why=_SMALL)
    enable_chunked_prefill: bool = harmless(True, why=_SMALL)
    max_num_batched_tokens: Tokens | None = harmless(None, why=_SMALL)
    start_timeout: Seconds | None = harmless(None, why="it is opened with its explorer")
    max_model_len: Tokens | None = None
    max_prompt_tokens: Tokens | None = None
    max_response_tokens: Tokens | None = None


class OverRollout(Section):
    """`explorer.over_rollout`: go on before the slowest tasks are done."""

    ratio: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The share of an explore step's tasks that is not waited for; 0: all are."""
    wait_after_min: Annotated[float, Field(ge=0), InUnit("s")] = 30.0
    """Least wait for them once the other tasks are done."""
    return_partial_tasks: bool = False
    """Train on the finished rollouts of tasks that are given up."""


class DynamicTimeout(Section):
    """`explorer.dynamic_timeout`: a time-out that follows recent durations."""

    enable: bool = False
    warmup_min_steps: Annotated[Natural, InUnit("steps")] = 1
    """Explore steps before it counts."""
    ratio: Annotated[float, Field(gt=0)] = 3.0
    """Longest attempt in recent mean durations, and never more than `max_timeout`."""


class StragglerReissue(Section):
    """`explorer.straggler_reissue`: what is slow is given to an idle explorer too. rftd's own; the guide has none."""

    enable: bool = False
    ratio: Annotated[float, Field(ge=1)] = 3.0
    """A lease is slow after so many recent mean durations."""


class Explorer(Section):
    """`explorer`."""

    name: str = harmless("explorer")
    runner_per_model: Count = 8
    """Rollouts that one explorer runs at once."""
    runner_prepare_concurrency: Count = harmless(8, why="runners need no preparation")
    runner_prepare_max_retries: Natural = harmless(2, why="runners need no preparation")
    max_timeout: Seconds = 1800.0
    """Longest attempt at one rollout. The guide shows 900."""
    max_retry_times: Natural = 2
    """Further attempts at a rollout that fails or takes too long."""
    env_vars: dict[str, Any] = {}
    """Text or a number, which explorers and what they start are given; a secret is `{env: NAME}`, and read where they
    run."""
    concurrent_mode: Annotated[Literal["sequential", "asynchronous", "multi-threading"], word()] = "sequential"
    max_repeat_times_per_runner: Count | None = None
    """A task's rollouts are given out in parts of at most so many; None: together."""
    rollout_model: RolloutModel = section(RolloutModel)
    auxiliary_models: list[AuxiliaryModel] = []
    eval_interval: Annotated[Natural, InUnit("steps")] = 100
    """Evaluate every so many steps, rounded down to a synchronisation; 0 = only at both ends."""
    eval_on_startup: bool = True
    """Evaluate the base model as well."""
    bench_on_latest_checkpoint: bool = refused(
        False, why="mode bench answers with model.model_path", fix="leave it out, and write a checkpoint's folder there"
    )
    proxy_port: Natural = 8010
    """The port that clients find with `mode: serve`; 0 takes any that is free."""
    listen_address: str = "127.0.0.1"
    """The address that clients find with `mode: serve`. The guide's is every interface; one beyond this machine needs a
    key."""
    service_status_check_interval: Seconds = harmless(60.0, why="an engine that dies is noticed at once")
    min_running_model_num: Count = checked(
        1, why="all engines go on answering with mode serve, for weights change between two tokens"
    )
    db_url: Url = harmless(None, why="the log keeps what was served")
    over_rollout: OverRollout = section(OverRollout)
    dynamic_timeout: DynamicTimeout = section(DynamicTimeout)
    straggler_reissue: StragglerReissue = section(StragglerReissue)
    runner_state_report_interval: Annotated[float, Field(ge=0), InUnit("s")] = harmless(0.0)
    eval_engine: Annotated[Literal["shared", "own"], word()] | None = None
    """rftd's own: evaluations on the engine of the rollouts, or on another one beside it. None: as the engine needs."""
    collect_only: bool = False
    """rftd's own, with `mode: explore` or `serve`: nobody will train; it ends when every task has been tried."""
    max_inflight_batches: Count = 2
    """Batches that explorers run ahead with `fully_async`."""

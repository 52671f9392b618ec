"""Section `explorer`: how tasks are tried, and the models that generate."""

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
from rftd.streams.spec.slow_rollouts import DynamicTimeout, OverRollout, StragglerReissue
from rftd.workers.generation.sampling import HIGHEST_PENALTY

Engine = Annotated[str, word(vllm_async="vllm")]
"""A rollout engine that is registered, or one of the guide's."""
_LENGTHS = "explorers and trainer share one set of lengths"
_ASKED = "whoever asks the model says so"
_FORMS = "programs are told its answers as text, and calls of tools in the form of Hermes"
_SMALL = "an auxiliary model's engine is not tuned"
_ALWAYS = "the log-probability of each sampled token is always kept"


class RolloutModel(Section):
    """An inference engine and how often it runs."""

    model_path: Annotated[str | None, LocalPath()] = refused(
        None,
        why="explorers generate with the model that is trained",
        fix="write it in model.model_path",
        same_as="model.model_path",
    )
    name: Annotated[str | None, PLAIN] = harmless(None)
    engine_type: Annotated[Engine, Upstream("Not written, it is vLLM on every machine."), PLUGIN] = "vllm"
    """The engine that generates: `vllm`, `torch`, `external`, or a third party's; not written: vLLM on a GPU, else
    torch."""
    engine_num: Count = 1
    """Explorers, each a process with its own engine; 16 at most."""
    tensor_parallel_size: Count = 1
    """vLLM's: GPUs that each layer is spread over."""
    data_parallel_size: Annotated[Count, Upstream("More than 1 runs.")] = 1
    """vLLM's: copies of the model in one engine; more than 1 is refused, for `engine_num` makes more engines."""
    pipeline_parallel_size: Annotated[Count, Upstream("More than 1 runs.")] = 1
    """vLLM's: GPUs that the layers are spread over one after another; more than 1 is refused."""
    enable_expert_parallel: bool = False
    """vLLM's: true places whole experts on different GPUs."""
    extra_engine_args: Annotated[Args, ARGUMENTS] = {}
    """Further arguments of the engine, by its own names."""
    use_v1: bool = harmless(True, why="vLLM has no other engine any more")
    enforce_eager: bool = False
    """vLLM's: true runs without CUDA graphs."""
    enable_prefix_caching: Annotated[bool, Upstream("It was false in the guide's release.")] = True
    """vLLM's: keep what prompts have in common."""
    enable_chunked_prefill: Annotated[bool, Upstream("It was false in the guide's release.")] = True
    """For vLLM: compute long prompts in parts, together with the decoding of other requests."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    """vLLM's: the share of the GPU's memory that the engine takes."""
    max_num_seqs: Count | None = None
    """vLLM's: the most requests in one pass; None: as many as an explorer runs at once."""
    max_num_batched_tokens: Tokens | None = None
    """vLLM's: the most tokens in one pass."""
    start_timeout: Seconds | None = None
    """rftd only: the longest start of an explorer with its engine; None: the engine's usual one."""
    dtype: Annotated[
        Literal["bfloat16", "float16", "float32", "auto"],
        word(),
        Upstream("Not written, it is `bfloat16` on every device."),
    ] = "bfloat16"
    """The number format of the explorers' weights; not written: `float32` on a CPU."""
    seed: Seed = harmless(42, why="rollouts use the experiment's seed")
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    """In the place of `model.temperature`; none: as there."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """In the place of `model.top_p`; none: as there."""
    top_k: Annotated[int, Field(ge=-1)] | None = None
    """In the place of `model.top_k`; none: as there."""
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
    """In the place of `model.repetition_penalty`; none: as there."""
    ignore_eos: bool = False
    """True: of every taskset, as if its `rollout_args` said so."""
    enable_multimodal: bool = refused(False, why="models are asked with text alone")
    chat_template: Annotated[str | None, PLAIN] = None
    """In the place of `model.custom_chat_template`; none: as there."""
    enable_thinking: bool | None = None
    """In the place of `model.enable_thinking`; none: as there."""
    enable_history: bool = acts_later(False, why="every answer is part of its rollout, also where it is false")
    enable_openai_api: bool = harmless(False, why="agent programs and mode serve have it without")
    enable_log_requests: bool = harmless(False, why="the log keeps every request")
    base_port: Natural | None = harmless(None, why="ports are chosen")
    api_key: Annotated[Url, VARIABLE] = harmless("EMPTY", why="an engine of ours has no address")
    enable_auto_tool_choice: Annotated[bool | None, Upstream("Trinity-RFT's default is false.")] = None
    """True or none: calls are looked for wherever tools are offered."""
    tool_call_parser: Annotated[str | None, Upstream("Without it no calls are looked for."), PLUGIN] = None
    """The form in which the model writes calls of tools; none: `hermes`."""
    reasoning_parser: Annotated[str | None, PLUGIN] = None
    """The form in which the model writes its thoughts, which are then told apart; none: they stay in the text."""
    nnodes: Count = refused(1, why="an engine is on one machine")
    node_rank: Natural = harmless(0, why="an engine is on one machine")
    enable_return_routed_experts: bool = refused(False, why="the experts that a token took are not recorded")
    weight_sync_buffer_size: Annotated[Natural, InUnit("MB")] = harmless(1024)


class AuxiliaryModel(RolloutModel):
    """A model besides the trained one, for workflows and rewards to call, in the explorers or on a service.

    The first is the teacher of an algorithm that has one.
    """

    model_path: Annotated[str | None, LocalPath()] = None
    """The folder of the model; required with an engine of its own."""
    name: Annotated[str | None, PLAIN] = None
    """The name by which workflows and rewards ask for it; none: made of the model's."""
    engine_type: Annotated[Engine, Upstream("Trinity-RFT's default is `vllm`."), PLUGIN] = "torch"
    """The engine in each explorer, or `external` for a service; not written: vLLM where there are GPUs enough for all
    engines and the trainer, else torch."""
    model_name: Annotated[str | None, PLAIN] = None
    """rftd only, with `engine_type: external`: what the service calls the model."""
    base_url: Annotated[Url, URL] = None
    """rftd only: the service's address up to `/v1`, or `{env: NAME}`."""
    api_key: Annotated[Url, VARIABLE] = "EMPTY"
    """`{env: NAME}`, or `EMPTY` for a service that wants none."""
    repetition_penalty: float | None = refused(None, why=_ASKED)
    min_response_tokens: Annotated[Natural, InUnit("tokens")] | None = refused(None, why=_ASKED)
    enable_prompt_truncation: bool | None = refused(None, why="a prompt that is too long is refused")
    ignore_eos: bool = refused(False, why=_ASKED)
    enable_history: bool = refused(False, why="the answers of the trained model alone are part of a rollout")
    enable_thinking: bool | None = None
    """A variable of its chat template, with an engine of its own: a service fills its template in by itself."""
    enable_auto_tool_choice: Annotated[bool | None, Upstream("Trinity-RFT's default is false.")] = refused(
        None, why=_FORMS
    )
    tool_call_parser: Annotated[str | None, PLUGIN] = refused(None, why=_FORMS)
    reasoning_parser: Annotated[str | None, PLUGIN] = refused(None, why=_FORMS)
    enable_expert_parallel: bool = harmless(False, why=_SMALL)
    enable_prefix_caching: bool = harmless(True, why=_SMALL)
    enable_chunked_prefill: bool = harmless(True, why=_SMALL)
    max_num_batched_tokens: Tokens | None = harmless(None, why=_SMALL)
    start_timeout: Seconds | None = harmless(None, why="it is opened with its explorer")
    engine_num: Count = 1
    """Engines of all explorers together, as many in each; a rollout asks the least busy one of its explorer."""
    tensor_parallel_size: Count = 1
    """vLLM's: GPUs that each layer of its engine in each explorer is spread over; torch is on one device."""
    data_parallel_size: Annotated[Count, Upstream("More than 1 runs.")] = 1
    """More than 1 is refused with vLLM on GPUs; with torch it counts GPUs that stay free."""
    pipeline_parallel_size: Annotated[Count, Upstream("More than 1 runs.")] = 1
    """More than 1 is refused with vLLM on GPUs; with torch it counts GPUs that stay free."""
    extra_engine_args: Annotated[Args, ARGUMENTS] = {}
    """Further arguments of its engine, or of the questions to a service."""
    dtype: Annotated[
        Literal["bfloat16", "float16", "float32", "auto"],
        word(),
        Upstream("Not written, it is `bfloat16`."),
    ] = "bfloat16"
    """The number format of its weights; not written: `bfloat16` with vLLM on GPUs, else `float32`."""
    max_num_seqs: Count | None = None
    """Questions that are answered at once; none: 16."""
    chat_template: Annotated[str | None, PLAIN] = None
    """A chat template, as text, instead of the model's own."""
    max_model_len: Tokens | None = None
    """Maximum number of tokens of prompt and response together; none: `model.max_model_len`."""
    max_prompt_tokens: Tokens | None = None
    """Maximum number of tokens of a prompt; none: what the response leaves."""
    max_response_tokens: Tokens | None = None
    """Maximum number of tokens of a response; none: `model.max_response_tokens`."""


if not TYPE_CHECKING:
    # Sections, which have the attributes of their declarations.
    OverRollout = declared(OverRollout)
    DynamicTimeout = declared(DynamicTimeout)
    StragglerReissue = declared(StragglerReissue)


class Explorer(Section):
    """`explorer`."""

    name: Annotated[str, PLAIN] = harmless("explorer")
    runner_per_model: Count = 8
    """Rollouts that one explorer runs at once."""
    runner_prepare_concurrency: Count = harmless(8, why="runners need no preparation")
    runner_prepare_max_retries: Natural = harmless(2, why="runners need no preparation")
    max_timeout: Annotated[Seconds, Upstream("The guide shows 900.")] = 1800.0
    """Longest attempt at one rollout."""
    max_retry_times: Natural = 2
    """Further attempts at a rollout that fails or takes too long."""
    env_vars: Annotated[dict[str, Any], Upstream("A secret may be written out."), VARIABLE] = {}
    """Text or a number, which explorers and what they start are given; a secret is `{env: NAME}`, and read where they
    run."""
    concurrent_mode: Annotated[Literal["sequential", "asynchronous", "multi-threading"], word()] = "sequential"
    """What a runner does at once: one rollout, or all that it was given of a task, in one event loop or a thread
    each."""
    max_repeat_times_per_runner: Count | None = None
    """A task's rollouts are given out in parts of at most so many; None: together."""
    rollout_model: RolloutModel = section(RolloutModel)
    auxiliary_models: list[AuxiliaryModel] = []
    eval_interval: Annotated[Natural, InUnit("steps")] = 100
    """Evaluate every so many steps, rounded down to a synchronisation; 0 = only at both ends."""
    eval_on_startup: bool = True
    """Evaluate the base model as well."""
    bench_on_latest_checkpoint: bool = acts_later(False, why="the daemon chooses the checkpoints that are measured")
    """True: mode bench measures the newest checkpoint of an experiment in the folder alone; False: each one."""
    proxy_port: Natural = 8010
    """The port that clients find with `mode: serve`; 0 takes any that is free."""
    listen_address: Annotated[str, Upstream("Trinity-RFT's is `0.0.0.0`, every interface."), ADDRESS] = "127.0.0.1"
    """The address that clients find with `mode: serve`; one beyond this machine needs a key."""
    service_status_check_interval: Seconds = harmless(60.0, why="an engine that dies is noticed at once")
    min_running_model_num: Count = checked(
        1, why="with mode serve, all engines continue to answer, because weights change between two tokens"
    )
    db_url: Annotated[Url, URL] = harmless(None, why="the log keeps what was served")
    over_rollout: OverRollout = section(OverRollout)
    dynamic_timeout: DynamicTimeout = section(DynamicTimeout)
    straggler_reissue: StragglerReissue = section(StragglerReissue)
    runner_state_report_interval: Annotated[float, Field(ge=0), InUnit("s")] = harmless(0.0)
    eval_engine: Annotated[Literal["shared", "own"], word()] | None = None
    """rftd only: evaluations use the engine of the rollouts, or a separate one. None: the engine of the rollouts,
    except in a deterministic run."""
    collect_only: bool = False
    """rftd only, with `mode: explore` or `serve`: nothing is trained; it ends when every task has been tried."""
    max_inflight_batches: Count = 2
    """Batches that explorers run ahead with `fully_async`."""

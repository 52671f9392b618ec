"""Section `model`: the model, with all lengths in tokens."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from rftd.daemon.config.schema.section import (
    Count,
    LocalPath,
    Natural,
    Section,
    Seed,
    Tokens,
    checked,
    harmless,
    refused,
    section,
)
from rftd.streams.spec.declaration import ARGUMENTS, CODE, PLAIN, URL, VARIABLE, InUnit, Upstream
from rftd.workers.generation.sampling import HIGHEST_PENALTY

_ROTATION = "rotary embeddings are read from the model's config.json"
"""Reason for refusing settings of rotary embeddings."""
_MODEL_FOLDER_FIX = "set it in config.json in the model's folder"
"""Advice for settings of rotary embeddings."""


class Lora(Section):
    """An entry of `model.lora_configs`: a low-rank adapter to train instead of all weights."""

    name: Annotated[str, PLAIN]
    """Name of the adapter."""
    path: Annotated[str | None, LocalPath()] = None
    """Folder in peft format to start from; none: a new adapter."""
    base_model_name: Annotated[str | None, PLAIN] = checked(None, why="the base model is always model.model_path")
    lora_rank: Count = 32
    """Rank of the adapter's matrices."""
    lora_alpha: Count = 32
    """Scale of the adapter's output, before division by the rank."""
    lora_dtype: Annotated[str, PLAIN] = checked("auto", why="adapters are trained in float32")
    # A word or a list: the resolver's check gives a better message than a union of types.
    target_modules: Annotated[Any, PLAIN] = "all-linear"
    """Modules with an adapter: a list of names, or `all-linear`."""
    exclude_modules: Annotated[Any, PLAIN] = None
    """Modules without an adapter, even if `target_modules` names them."""


class Tinker(Section):
    """`model.tinker`: training and sampling by the service Tinker."""

    enable: bool = False
    """true: the service Tinker trains and generates instead of local engines."""
    base_model: Annotated[str | None, Upstream("Trinity-RFT 0.6 uses `model.model_path`."), PLAIN] = None
    """The service's name of the model; none: the last two parts of `model.model_path`."""
    rank: Annotated[int, Field(ge=1, le=4096), Upstream("16 in Trinity-RFT 0.6.")] = 32
    """Rank of the trained adapter."""
    seed: Seed | None = None
    """Seed of a new adapter; none: chosen by the service."""
    train_mlp: bool = True
    """Train the adapter of the MLP layers."""
    train_attn: bool = True
    """Train the adapter of the attention layers."""
    train_unembed: bool = True
    """Train the adapter of the output layer."""
    base_url: Annotated[str | None, URL] = None
    """URL of the service; none: the default."""


class ExternalModel(Section):
    """`model.external_model`: an endpoint to benchmark."""

    enable: bool = False
    """true, with mode bench: evaluate a service instead of `model_path`."""
    base_url_env: Annotated[str, VARIABLE] = "OPENAI_BASE_URL"
    """Environment variable with the service's URL."""
    api_key_env: Annotated[str, Upstream("A key is always required."), VARIABLE] = "OPENAI_API_KEY"
    """Environment variable with the service's key; empty: no key."""
    model_name: Annotated[str | None, PLAIN] = None
    """The service's name of the model; required with `enable`."""


class Model(Section):
    """`model`: the model, with all lengths in tokens."""

    model_path: Annotated[str, LocalPath()] = ""
    """Local Hugging Face folder of the model to train."""
    critic_model_path: Annotated[str, LocalPath()] = ""
    """Initial weights of the critic (a folder); empty: `model_path`."""
    trust_remote_code: Annotated[bool, CODE] = False
    """true: code in the model's folder may run."""
    custom_chat_template: Annotated[str | None, PLAIN] = None
    """Chat template, as text, instead of the model's own."""
    chat_template_path: Annotated[str | None, LocalPath()] = refused(
        None, why="the client does not read template files", fix="write the text into model.custom_chat_template"
    )
    temperature: Annotated[float, Field(ge=0, le=100)] = 1.0
    """Sampling temperature, unless a taskset sets another."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Sample from the most likely tokens with this total probability; 1: from all."""
    top_k: Annotated[int, Field(ge=-1)] = -1
    """Sample from this many of the most likely tokens; -1: from all."""
    logprobs: Natural = harmless(0, why="the log-probability of each sampled token is always recorded")
    max_model_len: Tokens | None = None
    """Maximum number of tokens of prompt and response together; none: their sum. Any one of the three lengths can be
    derived from the other two."""
    max_prompt_tokens: Tokens | None = None
    """Maximum number of tokens of a prompt; none: `max_model_len` minus the response, or half of it."""
    max_response_tokens: Tokens | None = None
    """Maximum number of tokens of a response; none: `max_model_len` minus the prompt."""
    min_response_tokens: Annotated[Natural, InUnit("tokens"), Upstream("The guide's default is 1.")] = 0
    """Minimum number of tokens of a response."""
    enable_prompt_truncation: bool = True
    """true: rollouts whose prompt is too long are not trained; false: they fail."""
    repetition_penalty: Annotated[float, Field(gt=0, le=HIGHEST_PENALTY)] = 1.0
    """Values above 1 make tokens already in the text less likely; 1: no effect."""
    enable_thinking: bool | None = None
    """Variable of the chat template; none: the template's default."""
    lora_configs: list[Lora] | None = None
    fully_sharded_loras: bool = harmless(False, why="the adapter is not sharded")
    max_cpu_loras: Natural | None = harmless(None)
    rope_scaling: Annotated[dict[str, Any] | None, ARGUMENTS] = refused(None, why=_ROTATION, fix=_MODEL_FOLDER_FIX)
    rope_theta: float | None = refused(None, why=_ROTATION, fix=_MODEL_FOLDER_FIX)
    tinker: Tinker = section(Tinker)
    external_model: ExternalModel = section(ExternalModel)

"""Section `model`: the model and its lengths, in tokens."""

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

_ROTATION = "a model is opened with the rotation that its config.json says"
_IN_FOLDER = "write it into config.json of the model's folder"


class Lora(Section):
    """An entry of `model.lora_configs`."""

    name: Annotated[str, PLAIN]
    """The adapter's name."""
    path: Annotated[str | None, LocalPath()] = None
    """A folder in peft's layout to begin from; none: a fresh adapter."""
    base_model_name: Annotated[str | None, PLAIN] = checked(None, why="an adapter belongs to model.model_path")
    lora_rank: Count = 32
    """The rank of the adapter's matrices."""
    lora_alpha: Count = 32
    """The scale of what the adapter adds, divided by its rank."""
    lora_dtype: Annotated[str, PLAIN] = checked("auto", why="adapters are trained in float32")
    # A word or a list: the resolver tells which, with a better message than a union of types has.
    target_modules: Annotated[Any, PLAIN] = "all-linear"
    """The modules that get an adapter: a list of names, or `all-linear`."""
    exclude_modules: Annotated[Any, PLAIN] = None
    """Modules that get none although `target_modules` names them."""


class Tinker(Section):
    """`model.tinker`."""

    enable: bool = False
    """True: the service Tinker trains and generates, in the place of engines here."""
    base_model: Annotated[str | None, Upstream("Trinity-RFT 0.6 has `model.model_path` alone."), PLAIN] = None
    """The model's name at the service; none: the last two parts of `model.model_path`."""
    rank: Annotated[int, Field(ge=1, le=4096), Upstream("Trinity-RFT 0.6 has 16.")] = 32
    """The rank of the adapter that is trained."""
    seed: Seed | None = None
    """The seed of a fresh adapter; none: the service's own."""
    train_mlp: bool = True
    """Train the adapter of the MLP layers."""
    train_attn: bool = True
    """Train the adapter of the attention layers."""
    train_unembed: bool = True
    """Train the adapter of the output layer."""
    base_url: Annotated[str | None, URL] = None
    """Another address of the service; none: its own."""


class ExternalModel(Section):
    """`model.external_model`: an endpoint that is only benchmarked."""

    enable: bool = False
    """True, with mode bench: a service is measured in the place of `model_path`."""
    base_url_env: Annotated[str, VARIABLE] = "OPENAI_BASE_URL"
    """The environment variable that holds the service's address."""
    api_key_env: Annotated[str, Upstream("A key is always needed."), VARIABLE] = "OPENAI_API_KEY"
    """The environment variable that holds the service's key; empty: it needs none."""
    model_name: Annotated[str | None, PLAIN] = None
    """The service's name of the model; required with `enable`."""


class Model(Section):
    """`model`."""

    model_path: Annotated[str, LocalPath()] = ""
    """The local Hugging Face folder of the model that is trained."""
    critic_model_path: Annotated[str, LocalPath()] = ""
    """The folder that the critic begins from; empty: `model_path`."""
    trust_remote_code: Annotated[bool, CODE] = False
    """True: code in the model's folder may run."""
    custom_chat_template: Annotated[str | None, PLAIN] = None
    """A chat template, as text, in the place of the model's own."""
    chat_template_path: Annotated[str | None, LocalPath()] = refused(
        None, why="the client reads no template", fix="write the text into model.custom_chat_template"
    )
    temperature: Annotated[float, Field(ge=0, le=100)] = 1.0
    """The temperature of sampling, where no taskset says another."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Sample from the most likely tokens that together have this probability; 1: from all."""
    top_k: Annotated[int, Field(ge=-1)] = -1
    """Sample from this many of the most likely tokens; -1: from all."""
    logprobs: Natural = harmless(0, why="the log-probability of each sampled token is always kept")
    max_model_len: Tokens | None = None
    """Maximum number of tokens of prompt and response together; none: their sum. One of the three lengths follows from
    the others."""
    max_prompt_tokens: Tokens | None = None
    """Maximum number of tokens of a prompt; none: what `max_model_len` leaves, or half of it."""
    max_response_tokens: Tokens | None = None
    """Maximum number of tokens of a response; none: what `max_model_len` leaves."""
    min_response_tokens: Annotated[Natural, InUnit("tokens"), Upstream("The guide's default is 1.")] = 0
    """Minimum number of tokens of a response: it cannot end before."""
    enable_prompt_truncation: bool = True
    """True: a prompt that is too long trains nothing; false: it is an error of the rollout."""
    repetition_penalty: Annotated[float, Field(gt=0, le=HIGHEST_PENALTY)] = 1.0
    """Above 1, tokens that are in the text already become less likely; 1: they do not."""
    enable_thinking: bool | None = None
    """A variable of the chat template; None: as the template does without it."""
    lora_configs: list[Lora] | None = None
    fully_sharded_loras: bool = harmless(False, why="the adapter is not sharded")
    max_cpu_loras: Natural | None = harmless(None)
    rope_scaling: Annotated[dict[str, Any] | None, ARGUMENTS] = refused(None, why=_ROTATION, fix=_IN_FOLDER)
    rope_theta: float | None = refused(None, why=_ROTATION, fix=_IN_FOLDER)
    tinker: Tinker = section(Tinker)
    external_model: ExternalModel = section(ExternalModel)

"""Section `model`: the model and its lengths, in tokens."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from rftd.daemon.config.schema.section import (
    Count,
    InUnit,
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
from rftd.workers.rollout.sampling import HIGHEST_PENALTY

_ROTATION = "a model is opened with the rotation that its config.json says"
_IN_FOLDER = "write it into config.json of the model's folder"


class Lora(Section):
    """An entry of `model.lora_configs`."""

    name: str
    path: Annotated[str | None, LocalPath()] = None
    base_model_name: str | None = checked(None, why="an adapter belongs to model.model_path")
    lora_rank: Count = 32
    lora_alpha: Count = 32
    lora_dtype: str = checked("auto", why="adapters are trained in float32")
    # A word or a list: the resolver tells which, with a better message than a union of types has.
    target_modules: Any = "all-linear"
    exclude_modules: Any = None


class Tinker(Section):
    """`model.tinker`."""

    enable: bool = False
    base_model: str | None = None
    rank: Annotated[int, Field(ge=1, le=4096)] = 32
    """As in the guide; Trinity-RFT 0.6 has 16."""
    seed: Seed | None = None
    train_mlp: bool = True
    train_attn: bool = True
    train_unembed: bool = True
    base_url: str | None = None


class ExternalModel(Section):
    """`model.external_model`: an endpoint that is only benchmarked."""

    enable: bool = False
    base_url_env: str = "OPENAI_BASE_URL"
    api_key_env: str = "OPENAI_API_KEY"
    model_name: str | None = None


class Model(Section):
    """`model`."""

    model_path: Annotated[str, LocalPath()] = ""
    critic_model_path: Annotated[str, LocalPath()] = ""
    trust_remote_code: bool = False
    custom_chat_template: str | None = None
    chat_template_path: Annotated[str | None, LocalPath()] = refused(
        None, why="the client reads no template", fix="write the text into model.custom_chat_template"
    )
    temperature: Annotated[float, Field(ge=0, le=100)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1)] = -1
    logprobs: Natural = harmless(0, why="the log-probability of each sampled token is always kept")
    max_model_len: Tokens | None = None
    """None: prompt and response together. One of the three lengths follows from the others."""
    max_prompt_tokens: Tokens | None = None
    max_response_tokens: Tokens | None = None
    min_response_tokens: Annotated[Natural, InUnit("tokens")] = 0
    """The guide's default is 1."""
    enable_prompt_truncation: bool = True
    repetition_penalty: Annotated[float, Field(gt=0, le=HIGHEST_PENALTY)] = 1.0
    enable_thinking: bool | None = None
    """A variable of the chat template; None: as the template does without it."""
    lora_configs: list[Lora] | None = None
    fully_sharded_loras: bool = harmless(False, why="the adapter is not sharded")
    max_cpu_loras: Natural | None = harmless(None)
    rope_scaling: dict[str, Any] | None = refused(None, why=_ROTATION, fix=_IN_FOLDER)
    rope_theta: float | None = refused(None, why=_ROTATION, fix=_IN_FOLDER)
    tinker: Tinker = section(Tinker)
    external_model: ExternalModel = section(ExternalModel)

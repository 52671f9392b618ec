"""Model folders in Hugging Face's layout: read and written, safetensors only."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch
from torch import Tensor

from rftd.ops.errors import ConfigError, DataError
from rftd.workers.models.model_type import model_type
from rftd.workers.models.pretrained import read_model, restore_dropout

TOKENIZER_FILES: Final = (
    "added_tokens.json",
    "chat_template.jinja",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)
"""Names of the files of a tokenizer, copied as they are."""

_GENERATION: Final = "generation_config.json"
"""File with a model's default sampling settings."""

SHARED_PREFIX_ARCHITECTURES: Final = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""Decoders that honour any attention mask and any positions in every layer."""


def load_model(folder: Path, device: torch.device, *, trust_remote_code: bool = False) -> Any:
    """Loads the model in float32, without dropout. Raises DataError for a folder without a trainable model."""
    if not (folder / "config.json").is_file():
        raise DataError(
            "the folder holds no model: config.json is missing",
            where=str(folder),
            fix="give a local folder in Hugging Face's layout, with model.safetensors",
        )
    try:
        # float32 whatever the file holds: AdamW's small steps vanish in bfloat16 weights.
        model = read_model(folder, dtype=torch.float32, trust_remote_code=trust_remote_code)
    except DataError:
        raise
    except Exception as error:
        raise DataError(
            f"the {model_type(folder)} model cannot be read: {type(error).__name__}: {error}",
            where=str(folder),
            fix="check its config.json and its safetensors files; copy the folder again",
        ) from error
    if model.get_output_embeddings() is None or not isinstance(getattr(model.config, "hidden_size", None), int):
        raise DataError(
            f"{model.config.model_type} models have no output layer over one hidden state, as the torch engine needs",
            where=str(folder),
            fix="use another model",
        )
    if getattr(model.config.get_text_config(), "attn_logit_softcapping", None):
        model.set_attn_implementation("eager")  # the others leave the cap of the scores out
    return model.to(device).eval()


def tensors_of(model: Any) -> dict[str, Tensor]:
    """Returns weights and persistent buffers by name, detached, not copied; a shared weight appears once."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()} | buffers_of(model)


def buffers_of(model: Any) -> dict[str, Tensor]:
    """Returns the persistent buffers: numbers of a model that are not trained, such as the bias of a router of
    experts.
    """
    saved = model.state_dict().keys()  # without the buffers that are computed anew wherever the model is made
    return {name: buffer.detach() for name, buffer in model.named_buffers() if name in saved}


def decoder_of(model: Any) -> Any:
    """Returns the part of a model that computes the hidden states for the output layer.

    transformers' own lookup goes by name, and for some architectures returns the complete model, for others the output
    layer.
    """
    decoder = model.get_decoder()
    if decoder is not model and decoder is not model.get_output_embeddings():
        return decoder
    return getattr(model, "model", model.base_model)


def output_states(model: Any, states: Tensor) -> Tensor:
    """Returns the inputs of the output layer from the decoder's states  # [N, D] -> [N, D]

    Equal, except for ModernBERT, whose decoder is followed by a further layer.
    """
    between = getattr(model, "lm_head", None)
    if between is None or between is model.get_output_embeddings():
        return states
    states_between: Tensor = between(states)
    return states_between


def recompute_layers(model: Any) -> None:
    """Switches the decoder's layers to gradient checkpointing: only inputs are stored, and the backward pass computes
    the layers again. Raises ConfigError if the model does not support it.
    """
    if not getattr(model, "supports_gradient_checkpointing", False):
        raise ConfigError(
            f"{model.config.model_type} models compute no layer again",
            field="trainer.engine_args.gradient_checkpointing",
            fix="leave it out",
        )
    # Not reentrant: the reentrant form needs inputs with gradients, which embeddings below an adapter have not.
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    # Only layers in training do. Some drop out by themselves then; the configuration's probabilities are 0.
    for module in model.modules():
        if getattr(module, "gradient_checkpointing", False):
            module.training = True


def can_share_prefixes(model: Any) -> bool:
    """True if responses to one prompt may share a row of tokens with this model."""
    # A window counts places of a row, and a shared row has other responses between a token and its prompt.
    config = model.config
    windowed = getattr(config, "use_sliding_window", True) and getattr(config, "sliding_window", None)
    return config.model_type in SHARED_PREFIX_ARCHITECTURES and not windowed


def write_hf(model: Any, folder: Path, base: Path, *, weights: Mapping[str, Tensor] | None = None) -> None:
    """Writes a folder for transformers: config, the base's tokenizer, and `weights`, by default the model's."""
    folder.mkdir(parents=True, exist_ok=True)
    generation = base / _GENERATION
    with _plain_generation(model) if generation.is_file() else nullcontext():
        model.save_pretrained(folder, state_dict=None if weights is None else dict(weights))
    if generation.is_file():
        shutil.copyfile(generation, folder / _GENERATION)
    restore_dropout(folder, base)
    write_tokenizer(folder, base)


def try_description(model: Any, base: Path) -> None:
    """Writes all files of a trained model's folder except weights into a temporary folder.

    Otherwise a failure would end the run at its last checkpoint, after all training. Raises DataError.
    """
    with TemporaryDirectory(prefix="rftd-") as name:
        try:
            write_hf(model, Path(name), base, weights={})
        except Exception as error:
            raise DataError(
                f"the folder of the trained model could not be written: {type(error).__name__}: {error}",
                where=str(base),
                fix="correct the model's config.json, or the file that is named",
            ) from error


@contextmanager
def _plain_generation(model: Any) -> Iterator[None]:
    """Removes the model's generation settings within the context, because transformers refuses to save some settings in
    use.
    """
    own = getattr(model, "generation_config", None)
    if own is None:
        yield
        return
    model.generation_config = type(own)()
    try:
        yield
    finally:
        model.generation_config = own


def write_description(config: Any, folder: Path, base: Path, *, architecture: str) -> None:
    """Writes all files of a model's folder for transformers except the float32 weights.

    `architecture`: the class of the model, where the base's config does not name one.
    """
    described = copy.deepcopy(config)
    # Else transformers would round what it loads to the dtype of the base.
    described.dtype = "float32"
    described.architectures = described.architectures or [architecture]
    described.save_pretrained(folder)
    restore_dropout(folder, base)
    write_tokenizer(folder, base)
    code = base.glob("*.py") if getattr(described, "auto_map", None) else ()
    for path in (base / _GENERATION, *code):
        if path.is_file():
            shutil.copyfile(path, folder / path.name)


def write_tokenizer(folder: Path, base: Path) -> None:
    """Copies the base's tokenizer into a folder."""
    # Copied, not saved anew: transformers writes other bytes than it read.
    for name in TOKENIZER_FILES:
        if (base / name).is_file():
            shutil.copyfile(base / name, folder / name)

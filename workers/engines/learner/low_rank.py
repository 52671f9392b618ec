"""`LowRankLayers`: peft's low-rank matrices added to linear layers. `LowRankPolicy`: a policy that trains only them.

Source: Hu et al. 2021, LoRA, arXiv 2106.09685.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from rftd.ops.errors import ConfigError, DataError
from rftd.streams.spec.spec import LoraSpec
from rftd.workers.engines.learner import saving
from rftd.workers.engines.learner.model import write_tokenizer
from rftd.workers.engines.ranks.collectives import raise_on_all_ranks
from rftd.workers.engines.ranks.spread import copy_shards
from rftd.workers.weights.adapter import A, B

FOLDER: Final = "lora_adapter"
"""Folder of an adapter within a checkpoint's `actor`."""
_MATRICES_FILE: Final = "adapter_model.safetensors"
"""Name of the file with an adapter's matrices."""
_ADAPTER_NAME: Final = "default"
"""Name given by peft to the only adapter of a model."""
_BASE_LAYER_PART: Final = ".base_layer."
"""Part inserted by peft into the parameter names of an adapted layer."""


class LowRankLayers:
    """The matrices A and B of each adapted layer of `model`, which is changed in place.

    Tensors are looked up on access, because parameters may be spread over ranks after construction.
    """

    def __init__(self, model: Any, base: Path, spec: LoraSpec, *, seed: int) -> None:
        """Adds fresh matrices drawn by `seed`, or those of the folder `spec.path`. Raises ConfigError for unfit layers,
        DataError for a folder without an adapter.
        """
        peft = _peft()
        # A fresh adapter is drawn from torch's own generator: seeded here, and put back as it was.
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            try:
                self._peft = peft.get_peft_model(model, _peft_config(peft, spec, base))
                """peft's wrapper around the model."""
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigError(
                    f"no adapter can be made: {error}",
                    field="model.lora_configs.target_modules",
                    fix="name linear layers of the model, or write all-linear",
                ) from error
        # eval: dropout would draw numbers, and the log-probabilities of a step could not be computed again.
        self.model: Any = self._peft.get_base_model().eval()
        """The model with its adapted layers, without peft's wrapper around the whole."""
        self._base = base
        """Folder of the frozen model."""
        self._adapted_layers = _adapted_layers(self.model, base)
        """Adapted modules by name."""
        if spec.path:
            saving.copy_weights(self.saved(), read_adapter(Path(spec.path)), Path(spec.path))

    @property
    def modules(self) -> tuple[str, ...]:
        """The names of the adapted modules."""
        return tuple(self._adapted_layers)

    def low(self, module: str) -> Tensor:
        """Returns the matrix A of a module  # [r, in]"""
        matrix: Tensor = self._adapted_layers[module].lora_A[_ADAPTER_NAME].weight.detach()
        return matrix

    def high(self, module: str) -> Tensor:
        """Returns the matrix B of a module  # [out, r]"""
        matrix: Tensor = self._adapted_layers[module].lora_B[_ADAPTER_NAME].weight.detach()
        return matrix

    def scale(self, module: str) -> float:
        """Returns the factor of B A in the module's weight: weight = base + scale B A."""
        factor: float = self._adapted_layers[module].scaling[_ADAPTER_NAME]
        return factor

    def change(self, module: str) -> Tensor:
        """Returns scale B A of a module that is not spread over ranks  # [out, in]"""
        product: Tensor = self._adapted_layers[module].get_delta_weight(_ADAPTER_NAME).detach()
        return product

    def saved(self) -> dict[str, Tensor]:
        """Returns the matrices by peft's names, not copied."""
        matrices: dict[str, Tensor] = _peft().get_peft_model_state_dict(self._peft)
        return matrices

    def write(self, actor: Path, tensors: Mapping[str, Tensor]) -> None:
        """Writes `lora_adapter/` in peft's layout; `tensors` are the complete matrices of `saved`."""
        folder = actor / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        self._peft.peft_config[_ADAPTER_NAME].save_pretrained(folder)
        # One file, as peft reads it, however many ranks there are.
        saving.write_file(folder / _MATRICES_FILE, tensors)
        write_tokenizer(folder, self._base)


class LowRankPolicy:
    """Base of policies that train an adapter of a frozen model.

    `merged`: explorers receive complete weights, base plus adapter; else the adapter alone, to be added to their own
    base.
    """

    def __init__(self, model: Any, layers: LowRankLayers, base: Path, *, merged: bool) -> None:
        """`model` runs the forward passes, with the adapted `layers` in it; `base` is the folder of the frozen model;
        `merged` publishes complete weights.
        """
        self.model = model
        """The model that runs the forward passes."""
        self.base = base
        """Folder of the frozen model."""
        self.merged = merged
        """True: explorers receive complete weights instead of the adapter."""
        self.layers = layers
        """The adapted layers of the model."""

    def whole(self) -> Mapping[str, Tensor]:
        """Returns the merged weights by the model's own names: base + scale B A of each adapted module, buffers
        included.
        """
        raise NotImplementedError

    def published(self) -> Mapping[str, Tensor]:
        """Returns the tensors for explorers: the merged weights, or the adapter alone."""
        return self.whole() if self.merged else self.alone()

    def alone(self) -> dict[str, Tensor]:
        """Returns the adapter's matrices by explorers' names, with the scale multiplied into B."""
        tensors = {}
        for module in self.layers.modules:
            tensors[module + A] = self.layers.low(module)
            # The scale goes into B, so that explorers add B A without knowing rank or alpha.
            tensors[module + B] = self.layers.high(module) * self.layers.scale(module)
        return tensors

    def restore(self, actor: Path) -> None:
        """Loads the adapter from `lora_adapter/`. Raises DataError, on all ranks, if it is missing or unfit."""
        folder = actor / FOLDER
        with raise_on_all_ranks():
            saving.copy_weights(self.layers.saved(), read_adapter(folder), folder)


class EarlierNumbers:
    """Copy of an adapter's parameters at one moment, for the reference of a stage; the frozen base needs no copy."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        """Copies the current values of the parameters."""
        self._parameters = parameters
        """The parameters of the model."""
        self._earlier = {name: value.detach().clone() for name, value in parameters.items()}
        """The copied values by name."""

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Puts the copied values into the parameters within the context; never between a forward pass and its backward
        pass.
        """
        # Copied out and in, not exchanged: the optimizer holds the very tensors of the parameters.
        present = {name: value.detach().clone() for name, value in self._parameters.items()}
        copy_shards(self._parameters, self._earlier)
        try:
            yield
        finally:
            copy_shards(self._parameters, present)

    def tensors(self) -> dict[str, Tensor]:
        """Returns the copied values by name; the tensors are shared with this object."""
        return dict(self._earlier)


def own_name(parameter: str) -> str:
    """Returns the name in the unadapted model of a parameter in the adapted model."""
    return parameter.replace(_BASE_LAYER_PART, ".")


def read_adapter(folder: Path) -> dict[str, Tensor]:
    """Reads an adapter's matrices by peft's names. Raises DataError for a folder without an adapter, or unreadable
    files.
    """
    if not (folder / _MATRICES_FILE).is_file():
        raise DataError(
            f"the folder holds no adapter: {_MATRICES_FILE} is missing",
            where=str(folder),
            fix="name a folder in peft's layout, with adapter_config.json and adapter_model.safetensors",
        )
    return saving.read_tensors(folder / _MATRICES_FILE)


def _peft() -> Any:
    """Imports peft. Raises ConfigError if the package is not installed."""
    try:
        import peft
    except ImportError as error:
        raise ConfigError(
            "adapters need the package peft, which is not installed",
            field="model.lora_configs",
            fix="install rftd with its extra `lora`",
        ) from error
    return peft


def _peft_config(peft: Any, spec: LoraSpec, base: Path) -> Any:
    """Returns an adapter's settings in peft's form."""
    targets: Any = "all-linear" if spec.target_modules == ("all-linear",) else list(spec.target_modules)
    return peft.LoraConfig(
        r=spec.rank,
        lora_alpha=spec.alpha,
        target_modules=targets,
        exclude_modules=list(spec.exclude_modules) or None,
        # No dropout: a step is a function of weights, optimizer state and batch.
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
        base_model_name_or_path=str(base),
    )


def _adapted_layers(model: Any, base: Path) -> dict[str, Any]:
    """Returns the adapted modules by name. Raises ConfigError for a module other than a plain linear layer."""
    from peft.tuners.lora import Linear

    adapted = {name: module for name, module in model.named_modules() if hasattr(module, "lora_A")}
    # The output layer's matrix is read directly (token_logprobs), which would leave an adapter on it out.
    ends = {id(model.get_input_embeddings()), id(model.get_output_embeddings())}
    for name, module in adapted.items():
        if not isinstance(module, Linear) or getattr(module, "fan_in_fan_out", False) or id(module) in ends:
            raise ConfigError(
                f"{name} of this model cannot be adapted: only linear layers between embeddings and output can",
                where=str(base),
                field="model.lora_configs.target_modules",
                fix="write all-linear, or name linear layers",
            )
    return adapted

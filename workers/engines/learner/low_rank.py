"""`LowRankLayers`: peft's low-rank matrices beside linear layers. `LowRankPolicy`: a policy with them under training.

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
from rftd.workers.engines.ranks.collectives import together
from rftd.workers.engines.ranks.spread import copy_shards
from rftd.workers.weights.adapter import A, B

FOLDER: Final = "lora_adapter"
_TENSORS: Final = "adapter_model.safetensors"
_NAME: Final = "default"
_BASE: Final = ".base_layer."


class LowRankLayers:
    """The matrices A and B beside each adapted layer of `model`, added in place.

    Tensors are looked up on access, for parameters may be spread over ranks after the making of the layers.
    """

    def __init__(self, model: Any, base: Path, spec: LoraSpec, *, seed: int) -> None:
        """Raises ConfigError for unfit layers, DataError for a folder of `spec` without an adapter."""
        peft = _peft()
        # A fresh adapter is drawn from torch's own generator: seeded here, and put back as it was.
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            try:
                self._peft = peft.get_peft_model(model, _config(peft, spec, base))
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigError(
                    f"no adapter can be made: {error}",
                    field="model.lora_configs.target_modules",
                    fix="name linear layers of the model, or write all-linear",
                ) from error
        # eval: dropout would draw numbers, and the log-probabilities of a step could not be computed again.
        self.model: Any = self._peft.get_base_model().eval()
        self._base = base
        self._layers = _layers(self.model, base)
        if spec.path:
            saving.copy_weights(self.saved(), read_adapter(Path(spec.path)), Path(spec.path))

    @property
    def modules(self) -> tuple[str, ...]:
        """The names of the adapted modules."""
        return tuple(self._layers)

    def low(self, module: str) -> Tensor:
        """A of a module  # [r, in]"""
        matrix: Tensor = self._layers[module].lora_A[_NAME].weight.detach()
        return matrix

    def high(self, module: str) -> Tensor:
        """B of a module  # [out, r]"""
        matrix: Tensor = self._layers[module].lora_B[_NAME].weight.detach()
        return matrix

    def scale(self, module: str) -> float:
        """The factor of B A in the module's weight."""
        factor: float = self._layers[module].scaling[_NAME]
        return factor

    def change(self, module: str) -> Tensor:
        """scale * B A of a module held whole by a rank  # [out, in]"""
        product: Tensor = self._layers[module].get_delta_weight(_NAME).detach()
        return product

    def saved(self) -> dict[str, Tensor]:
        """The matrices themselves, by peft's names."""
        matrices: dict[str, Tensor] = _peft().get_peft_model_state_dict(self._peft)
        return matrices

    def write(self, actor: Path, tensors: Mapping[str, Tensor]) -> None:
        """Saves `lora_adapter/` in peft's layout, for transformers: the matrices of `saved`, whole."""
        folder = actor / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        self._peft.peft_config[_NAME].save_pretrained(folder)
        # One file, as peft reads it, however many ranks there are.
        saving.write_file(folder / _TENSORS, tensors)
        write_tokenizer(folder, self._base)


class LowRankPolicy:
    """The common part of policies with an adapter under training above a frozen model.

    `merged`: explorers get whole weights; else the adapter alone, for them to add to their base.
    """

    def __init__(self, model: Any, layers: LowRankLayers, base: Path, *, merged: bool) -> None:
        """`model` computes the forward passes, `layers` are its adapter's."""
        self.model = model
        self.base = base
        self.merged = merged
        self.layers = layers

    def whole(self) -> Mapping[str, Tensor]:
        """The merged weights by the model's own names: base + scale B A for each adapted module, buffers included."""
        raise NotImplementedError

    def published(self) -> Mapping[str, Tensor]:
        """The merged weights, or the adapter alone."""
        return self.whole() if self.merged else self.alone()

    def alone(self) -> dict[str, Tensor]:
        """The matrices of each adapted module by explorers' names, with the scale in B."""
        tensors = {}
        for module in self.layers.modules:
            tensors[module + A] = self.layers.low(module)
            # The scale goes into B, so that explorers add B A without knowing rank or alpha.
            tensors[module + B] = self.layers.high(module) * self.layers.scale(module)
        return tensors

    def restore(self, actor: Path) -> None:
        """Restores the adapter from `lora_adapter/`. Raises DataError, on all ranks, if it is missing or unfit."""
        folder = actor / FOLDER
        with together():
            saving.copy_weights(self.layers.saved(), read_adapter(folder), folder)


class EarlierNumbers:
    """An adapter's numbers of an earlier moment, for the reference: the base beneath is frozen anyhow."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        """Copies the present numbers of the parameters."""
        self._parameters = parameters
        self._earlier = {name: value.detach().clone() for name, value in parameters.items()}

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Has the earlier numbers in the parameters; never between a forward pass and its backward pass."""
        # Copied out and in, not exchanged: the optimizer holds the very tensors of the parameters.
        present = {name: value.detach().clone() for name, value in self._parameters.items()}
        copy_shards(self._parameters, self._earlier)
        try:
            yield
        finally:
            copy_shards(self._parameters, present)

    def tensors(self) -> dict[str, Tensor]:
        """The earlier numbers by name, not copied."""
        return dict(self._earlier)


def own_name(parameter: str) -> str:
    """The model's own name of a parameter below an adapter."""
    return parameter.replace(_BASE, ".")


def read_adapter(folder: Path) -> dict[str, Tensor]:
    """The matrices by peft's names. Raises DataError if the folder holds none, or they cannot be read."""
    if not (folder / _TENSORS).is_file():
        raise DataError(
            f"the folder holds no adapter: {_TENSORS} is missing",
            where=str(folder),
            fix="name a folder in peft's layout, with adapter_config.json and adapter_model.safetensors",
        )
    return saving.read_tensors(folder / _TENSORS)


def _peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise ConfigError(
            "adapters need the package peft, which is not installed",
            field="model.lora_configs",
            fix="install rftd with its extra `lora`",
        ) from error
    return peft


def _config(peft: Any, spec: LoraSpec, base: Path) -> Any:
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


def _layers(model: Any, base: Path) -> dict[str, Any]:
    """The adapted modules by name. Raises ConfigError for a module other than a plain linear layer."""
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

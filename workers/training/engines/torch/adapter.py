"""`Adapter`: a low-rank adapter learns, the model beneath stays as it was read (peft)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from rftd.ops.errors import ConfigError, DataError
from rftd.streams.spec import LoraSpec
from rftd.workers.training.engines.torch import saving
from rftd.workers.training.engines.torch.model import buffers_of, write_hf, write_tokenizer
from rftd.workers.training.ranks.collectives import this_rank
from rftd.workers.weights.adapter import A, B

FOLDER: Final = "lora_adapter"
_TENSORS: Final = "adapter_model.safetensors"
_NAME: Final = "default"


class Adapter:
    """Implements `Policy` with a low-rank adapter.

    `merged`: explorers get whole weights; else the adapter alone, which they add to their base.
    Source: Hu et al. 2021, LoRA, arXiv 2106.09685.
    """

    def __init__(self, model: Any, base: Path, spec: LoraSpec, *, seed: int, merged: bool) -> None:
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
        self._merged = merged
        self._layers = _layers(self.model, base)
        if spec.path:
            self._take(_read(Path(spec.path)), Path(spec.path))

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """The matrices A and B of each adapted module, by name."""
        return {name: value for name, value in self.model.named_parameters() if value.requires_grad}

    def published(self) -> dict[str, Tensor]:
        """The merged weights by the model's own names, or the adapter with its scale in B."""
        return self.whole() if self._merged else self._alone()

    def whole(self) -> dict[str, Tensor]:
        """The merged weights: base + scale B A for each adapted module, every other weight and buffer as it is."""
        found = buffers_of(self.model)
        for name, value in self.model.named_parameters():
            if value.requires_grad:
                continue
            module = name.removesuffix(".base_layer.weight")
            # Merged anew for each publication, not in place: what learns must stay apart from the base.
            found[name.replace(".base_layer.", ".")] = (
                value.detach() + self._change(self._layers[module]) if module in self._layers else value.detach()
            )
        return found

    def freeze(self) -> AdapterAsItWas:
        """A copy of the adapter alone: the base beneath is frozen anyhow."""
        return AdapterAsItWas(self)

    def write(self, actor: Path, *, hf: bool) -> None:
        """Saves `lora_adapter/` in peft's layout, which transformers loads, and with `hf` the merged model too."""
        if this_rank()[0]:
            return
        folder = actor / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        self._peft.peft_config[_NAME].save_pretrained(folder)
        # One file, as peft reads it, however many ranks there are.
        saving.write_file(folder / _TENSORS, self._state())
        write_tokenizer(folder, self._base)
        if hf:
            write_hf(self.model, actor / "huggingface", self._base, weights=self.whole())

    def restore(self, actor: Path) -> None:
        """Takes the adapter back from `lora_adapter/`. Raises DataError if it is missing or does not fit."""
        self._take(_read(actor / FOLDER), actor / FOLDER)

    def _state(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = _peft().get_peft_model_state_dict(self._peft)
        return found

    def _take(self, tensors: Mapping[str, Tensor], where: Path) -> None:
        saving.copy_weights(self._state(), tensors, where)

    def _alone(self) -> dict[str, Tensor]:
        found = {}
        for module, layer in self._layers.items():
            found[module + A] = layer.lora_A[_NAME].weight.detach()
            # The scale goes into B, so that explorers add B A without knowing rank or alpha.
            found[module + B] = layer.lora_B[_NAME].weight.detach() * layer.scaling[_NAME]
        return found

    @staticmethod
    def _change(layer: Any) -> Tensor:
        change: Tensor = layer.get_delta_weight(_NAME).detach()
        return change


class AdapterAsItWas:
    """Implements `Reference`: the adapter's numbers of a moment, put in place while the model is asked."""

    def __init__(self, adapter: Adapter) -> None:
        self._live = {name: value.data for name, value in adapter.parameters().items()}
        self._model = adapter.model
        self._kept = {name: value.clone() for name, value in self._live.items()}

    @contextmanager
    def model(self) -> Iterator[Any]:
        """The model with these numbers. Not within a step's backward pass: the weights change beneath it."""
        # Copied out and in, not exchanged: the optimizer holds the very tensors that are the live ones.
        present = {name: value.clone() for name, value in self._live.items()}
        self._put(self._kept)
        try:
            yield self._model
        finally:
            self._put(present)

    def tensors(self) -> dict[str, Tensor]:
        """The kept numbers, by name."""
        return dict(self._kept)

    def restore(self, tensors: Mapping[str, Tensor], where: Path) -> None:
        """Takes other numbers. Raises DataError if names or shapes differ."""
        saving.copy_weights(self._kept, tensors, where)

    def _put(self, numbers: Mapping[str, Tensor]) -> None:
        for name, value in self._live.items():
            value.copy_(numbers[name])


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
    """The adapted modules by their own names. Raises ConfigError if one of them is not a plain linear layer."""
    from peft.tuners.lora import Linear

    found = {name: module for name, module in model.named_modules() if hasattr(module, "lora_A")}
    # The output layer's matrix is read directly (token_logprobs), which would leave an adapter on it out.
    ends = {id(model.get_input_embeddings()), id(model.get_output_embeddings())}
    for name, module in found.items():
        if not isinstance(module, Linear) or getattr(module, "fan_in_fan_out", False) or id(module) in ends:
            raise ConfigError(
                f"{name} of this model cannot be adapted: only linear layers between embeddings and output can",
                where=str(base),
                field="model.lora_configs.target_modules",
                fix="write all-linear, or name linear layers",
            )
    return found


def _read(folder: Path) -> dict[str, Tensor]:
    if not (folder / _TENSORS).is_file():
        raise DataError(
            f"the folder holds no adapter: {_TENSORS} is missing",
            where=str(folder),
            fix="name a folder in peft's layout, with adapter_config.json and adapter_model.safetensors",
        )
    return saving.read_tensors(folder / _TENSORS)

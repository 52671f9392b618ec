"""`PreparedWeights`: new weights as vLLM computes with them, made beside the running model.

vLLM's own way to take new ones goes through the model itself layer by layer, and draws nothing meanwhile: on a CPU,
whose layers compute with packed copies of their weights, many times as long as the bytes would take to be copied; on a
GPU, all tensors come over the bus meanwhile. Here the layers of a second model are loaded on another thread. On a CPU
they then change places with the running ones. On a GPU they are copied over them, for recorded graphs hold the
addresses of those. For that long there are two copies in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Self

import torch
from torch import nn
from vllm.model_executor.layers.attention import Attention, is_deferred_attention_layer
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
from vllm.model_executor.model_loader.reload import layerwise
from vllm.model_executor.model_loader.reload.meta import (
    SKIP_MODULES,
    SKIP_TENSORS,
    materialize_meta_tensor,
    to_meta_tensor,
)
from vllm.model_executor.model_loader.reload.sanitize import restore_layer_refs

from rftd.ops.errors import RolloutError

_PACKING: Final = (UnquantizedLinearMethod, UnquantizedEmbeddingMethod)
"""The ways of packing that leave all they make at the layer."""


class PreparedWeights:
    """The layers of the running model with new weights, which take the places of those with the old."""

    def __init__(self, layers: Mapping[nn.Module, nn.Module], *, in_place: bool = False) -> None:
        """`layers`: by those of the running model, whose tensors stay where they are if `in_place`. Use `of`."""
        self._layers = layers
        self._in_place = in_place
        self._replaced: list[dict[str, Any]] = []

    @staticmethod
    def possible(model: nn.Module) -> bool:
        """True for a model whose layers are prepared one by one, and know nothing of each other's memory."""
        for layer in model.modules():
            if is_deferred_attention_layer(layer) and type(layer) is not Attention:
                return False  # it computes weights of its own from those of other layers
            if isinstance(layer, Attention):
                continue
            if type(layer).__name__ in SKIP_MODULES:  # vLLM keeps no outlines of their weights
                return False
            if type(getattr(layer, "quant_method", None)) not in (type(None), *_PACKING):
                return False
            held = {each.untyped_storage().data_ptr() for each in layer.parameters() if each.numel()}
            if any(each.untyped_storage().data_ptr() in held for each in layer.buffers(recurse=False) if each.numel()):
                return False
        return True

    @classmethod
    @torch.no_grad()
    def of(cls, model: Any, tensors: Iterable[tuple[str, torch.Tensor]], *, in_place: bool = False) -> Self:
        """Those of the running model, loaded with these tensors by its own rules; nothing of it changes.

        They are made on torch's default device, which must be the model's. Raises RolloutError if a layer is left
        without weights.
        """
        layers: dict[nn.Module, nn.Module] = {}
        _beside(model, layers).load_weights(tensors)  # type: ignore[operator]
        loaded: dict[int, nn.Parameter | None] = {}
        unloaded = []
        for layer, twin in layers.items():
            info = layerwise.get_layerwise_info(twin)
            untouched = info.can_load() and info.load_numel <= 0
            if untouched:
                unloaded.append((layer, twin))
            elif info.can_load():  # what is padded is never loaded whole
                layerwise._layerwise_process(twin, info)
            info.reset()
            if not untouched:
                loaded |= {id(each): twin._parameters[name] for name, each in layer._parameters.items()}
        for layer, twin in unloaded:
            # An output layer that is tied to the embeddings may compute with a packed copy of its own.
            twin._parameters = {name: loaded.get(id(each), each) for name, each in layer._parameters.items()}
            method = getattr(twin, "quant_method", None)
            tied = any(id(each) in loaded for each in layer._parameters.values() if each is not None)
            if tied and isinstance(method, _PACKING):
                method.process_weights_after_loading(twin)
        for twin in layers.values():
            for name, parameter in twin._parameters.items():
                if parameter is not None and parameter.is_meta:
                    what = f"vLLM loaded nothing into {name!r} of a {type(twin).__name__}"
                    raise RolloutError(what, fix="publish all weights of the model that the explorers run")
        return cls(layers, in_place=in_place)

    def swap(self) -> None:
        """Puts the layers into their places: the next step computes with them."""
        if self._in_place:
            self._copy()
            return
        for layer, twin in self._layers.items():
            new = {
                name: each
                for name, each in twin.__dict__.items()
                if name != "_modules" and layer.__dict__.get(name) is not each
            }
            # Kept, for to free them takes as long as to copy a part of them.
            self._replaced.append({name: layer.__dict__.get(name) for name in new})
            layer.__dict__.update(new)

    @torch.no_grad()
    def _copy(self) -> None:
        """Copies the numbers into the running layers; what two of these share is copied once."""
        copied: set[int] = set()
        for layer, twin in self._layers.items():
            computed = layer._non_persistent_buffers_set
            made = {**twin._parameters, **{name: each for name, each in twin._buffers.items() if name not in computed}}
            for name, new in made.items():
                old = layer._parameters[name] if name in layer._parameters else layer._buffers[name]
                if old is None or new is None or old is new or id(old) in copied:
                    continue
                copied.add(id(old))
                old.data.copy_(new.data, non_blocking=True)

    def free(self) -> None:
        """Lets go of what was replaced."""
        self._layers = {}
        self._replaced.clear()


def _beside(layer: nn.Module, layers: dict[nn.Module, nn.Module]) -> nn.Module:
    """A layer like this one, its tensors apart, that waits for weights; with those below it, all noted in `layers`."""
    if layer in layers:
        return layers[layer]
    twin = nn.Module.__new__(type(layer))
    twin.__dict__.update(layer.__dict__)
    layers[layer] = twin
    twin._modules = {
        # Attention has nothing to be loaded, and its cache of keys and values must stay the one of the requests.
        name: child if child is None or isinstance(child, Attention) else _beside(child, layers)
        for name, child in layer._modules.items()
    }
    transient = layer._non_persistent_buffers_set
    twin._non_persistent_buffers_set = set(transient)
    twin._buffers = {
        name: each if each is None else each.detach() if name in transient else each.clone()
        for name, each in layer._buffers.items()
    }
    twin._parameters = _unloaded(layer)
    if twin._parameters:
        layerwise.initialize_online_processing(twin)
    return twin


def _unloaded(layer: nn.Module) -> dict[str, nn.Parameter | None]:
    """Parameters as they were before the layer was first loaded, without memory; vLLM keeps their outlines."""
    outlines, _ = layerwise.get_layerwise_info(layer).restore_metadata
    # Loaders are bound to the running layer, of which they read sizes alone: one that is replaced can be let go.
    made: dict[str, Any] = {
        name: restore_layer_refs(to_meta_tensor(outline), layer)
        for name, outline in outlines.items()
        if name not in SKIP_TENSORS
    }
    for name, parameter in layer._parameters.items():
        if parameter is None:
            made[name] = None
        elif name in SKIP_TENSORS:  # vLLM keeps no outline of these
            made[name] = materialize_meta_tensor(to_meta_tensor(parameter))
            made[name].data.copy_(parameter)
    return made

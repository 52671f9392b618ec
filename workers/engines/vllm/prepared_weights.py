"""`PreparedWeights`: new weights in vLLM's form, prepared while the model runs.

vLLM's own loading goes through the model layer by layer, without drawing meanwhile: on a CPU, with layers that compute
on packed copies of their weights, for many times the duration of a copy; on a GPU, for the transfer of all tensors over
the bus. Here the layers of a second model are loaded on another thread. On a CPU they then replace the running layers.
On a GPU they are copied into the running layers, because recorded graphs hold those addresses. Until then there are two
copies in memory.
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
"""vLLM's quantization methods of unquantized layers: each leaves everything that it computes from weights in attributes
of the layer, so that layers can be exchanged by their attributes.
"""


class PreparedWeights:
    """Copies of the running model's layers with new weights, to replace the old ones."""

    def __init__(self, layers: Mapping[nn.Module, nn.Module], *, in_place: bool = False) -> None:
        """`layers` maps each running layer to its copy; `in_place`: the copy's tensors are copied over the running
        layer's. To be created by `of`.
        """
        self._layers = layers
        self._in_place = in_place
        self._replaced: list[dict[str, Any]] = []

    @staticmethod
    def possible(model: nn.Module) -> bool:
        """True if new weights can be prepared for the model: no quantized layer, no attention layer that computes
        weights from other layers, no layer skipped by vLLM's reload, and no buffer in the memory of a parameter.
        """
        for layer in model.modules():
            if is_deferred_attention_layer(layer) and type(layer) is not Attention:
                return False  # it computes its own weights from other layers'
            if isinstance(layer, Attention):
                continue
            if type(layer).__name__ in SKIP_MODULES:  # vLLM has no outlines of their weights
                return False
            if type(getattr(layer, "quant_method", None)) not in (type(None), *_PACKING):
                return False
            storages = {parameter.untyped_storage().data_ptr() for parameter in layer.parameters() if parameter.numel()}
            if any(
                buffer.untyped_storage().data_ptr() in storages
                for buffer in layer.buffers(recurse=False)
                if buffer.numel()
            ):
                return False
        return True

    @classmethod
    @torch.no_grad()
    def of(cls, model: Any, tensors: Iterable[tuple[str, torch.Tensor]], *, in_place: bool = False) -> Self:
        """Returns the running model's layers, loaded with these tensors by the model's own rules; the model is not
        changed.

        The tensors are made on torch's default device, which must be the model's. Raises RolloutError if a layer is
        left without weights.
        """
        layers: dict[nn.Module, nn.Module] = {}
        _twin_of(model, layers).load_weights(tensors)  # type: ignore[operator]
        loaded: dict[int, nn.Parameter | None] = {}
        unloaded = []
        for layer, twin in layers.items():
            info = layerwise.get_layerwise_info(twin)
            untouched = info.can_load() and info.load_numel <= 0
            if untouched:
                unloaded.append((layer, twin))
            elif info.can_load():  # padded layers are never loaded whole
                layerwise._layerwise_process(twin, info)
            info.reset()
            if not untouched:
                loaded |= {id(parameter): twin._parameters[name] for name, parameter in layer._parameters.items()}
        for layer, twin in unloaded:
            # An output layer tied to the embeddings may compute with a packed copy of its own.
            twin._parameters = {
                name: loaded.get(id(running_parameter), running_parameter)
                for name, running_parameter in layer._parameters.items()
            }
            method = getattr(twin, "quant_method", None)
            tied = any(
                id(running_parameter) in loaded
                for running_parameter in layer._parameters.values()
                if running_parameter is not None
            )
            if tied and isinstance(method, _PACKING):
                method.process_weights_after_loading(twin)
        for twin in layers.values():
            for name, parameter in twin._parameters.items():
                if parameter is not None and parameter.is_meta:
                    problem = f"vLLM loaded nothing into {name!r} of a {type(twin).__name__}"
                    raise RolloutError(problem, fix="publish all weights of the model that the explorers run")
        return cls(layers, in_place=in_place)

    def swap(self) -> None:
        """Puts the layers into the running model: the next step computes with them."""
        if self._in_place:
            self._copy()
            return
        for layer, twin in self._layers.items():
            new = {
                name: attribute
                for name, attribute in twin.__dict__.items()
                if name != "_modules" and layer.__dict__.get(name) is not attribute
            }
            # Stored, because freeing them takes as long as copying a part of them.
            self._replaced.append({name: layer.__dict__.get(name) for name in new})
            layer.__dict__.update(new)

    @torch.no_grad()
    def _copy(self) -> None:
        """Copies the numbers into the running layers; shared tensors are copied once."""
        copied: set[int] = set()
        for layer, twin in self._layers.items():
            computed = layer._non_persistent_buffers_set
            prepared = {
                **twin._parameters,
                **{name: buffer for name, buffer in twin._buffers.items() if name not in computed},
            }
            for name, new in prepared.items():
                old = layer._parameters[name] if name in layer._parameters else layer._buffers[name]
                if old is None or new is None or old is new or id(old) in copied:
                    continue
                copied.add(id(old))
                old.data.copy_(new.data, non_blocking=True)

    def free(self) -> None:
        """Frees the layers replaced by the swap, and the references to the new ones."""
        self._layers = {}
        self._replaced.clear()


def _twin_of(layer: nn.Module, layers: dict[nn.Module, nn.Module]) -> nn.Module:
    """Creates a twin of a layer and of all layers below it, with separate tensors ready for loading; all are recorded
    in `layers`.
    """
    if layer in layers:
        return layers[layer]
    twin = nn.Module.__new__(type(layer))
    twin.__dict__.update(layer.__dict__)
    layers[layer] = twin
    twin._modules = {
        # Attention has no weights to load, and must keep the requests' cache of keys and values.
        name: child if child is None or isinstance(child, Attention) else _twin_of(child, layers)
        for name, child in layer._modules.items()
    }
    transient = layer._non_persistent_buffers_set
    twin._non_persistent_buffers_set = set(transient)
    twin._buffers = {
        name: buffer if buffer is None else buffer.detach() if name in transient else buffer.clone()
        for name, buffer in layer._buffers.items()
    }
    twin._parameters = _empty_parameters(layer)
    if twin._parameters:
        layerwise.initialize_online_processing(twin)
    return twin


def _empty_parameters(layer: nn.Module) -> dict[str, nn.Parameter | None]:
    """Returns a layer's parameters as before its first loading, by vLLM's remembered outlines and without memory;
    parameters in `SKIP_TENSORS` are copied.
    """
    outlines, _ = layerwise.get_layerwise_info(layer).restore_metadata
    # Loaders are bound to the running layer, and read only its sizes: a replaced layer can be freed.
    parameters: dict[str, Any] = {
        name: restore_layer_refs(to_meta_tensor(outline), layer)
        for name, outline in outlines.items()
        if name not in SKIP_TENSORS
    }
    for name, parameter in layer._parameters.items():
        if parameter is None:
            parameters[name] = None
        elif name in SKIP_TENSORS:  # vLLM has no outline of these
            parameters[name] = materialize_meta_tensor(to_meta_tensor(parameter))
            parameters[name].data.copy_(parameter)
    return parameters

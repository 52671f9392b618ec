"""Low-rank adapters in a weight channel: two tensors for each adapted module, and nothing else.

`<module>.lora_A` [r, in] and `<module>.lora_B` [out, r], the scale multiplied into B: the module's weight is its base
weight [out, in] plus B A (Hu et al. 2021, arXiv 2106.09685, section 4.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from rftd.ops.errors import RolloutError

if TYPE_CHECKING:
    from torch import Tensor

A: Final = ".lora_A"
"""Ending of the names of matrices A."""
B: Final = ".lora_B"
"""Ending of the names of matrices B."""


def is_adapter(names: Iterable[str]) -> bool:
    """True for tensors of an adapter only, not of a model."""
    tensor_names = list(names)
    return bool(tensor_names) and all(name.endswith((A, B)) for name in tensor_names)


def changes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    """Returns `<module>.weight` -> (A [r, in], B [out, r]). Raises RolloutError if a module lacks A or B."""
    modules = {name.removesuffix(A).removesuffix(B) for name in tensors}
    for module in sorted(modules):
        if module + A not in tensors or module + B not in tensors:
            raise RolloutError(
                f"the adapter holds one of two tensors of {module!r}",
                fix="publish the weights again: an adapter has a lora_A and a lora_B for each module",
            )
    return {f"{module}.weight": (tensors[module + A], tensors[module + B]) for module in sorted(modules)}


def adapted(adapter: Mapping[str, Tensor], bases: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns `<module>.weight` -> base weight + B A, in float32; `bases` are the base weights of the adapted modules.

    Raises RolloutError if the adapter belongs to another model.
    """
    pairs = changes(adapter)
    if pairs.keys() != bases.keys():
        odd = sorted(pairs.keys() ^ bases.keys())[0]
        raise RolloutError(f"the adapter and the model differ in {odd!r}", fix="publish adapters of one set of modules")
    merged = {}
    for name, (low, high) in pairs.items():
        base = bases[name]
        if low.shape[0] != high.shape[1] or base.shape != (high.shape[0], low.shape[1]):
            raise RolloutError(
                f"the adapter of {name!r} has shapes {tuple(low.shape)} and {tuple(high.shape)}, "
                f"its weight {tuple(base.shape)}",
                fix="publish adapters made from the model that the explorers run",
            )
        # Always from the base: adding to the last sum would keep every earlier adapter, with rounding.
        merged[name] = base.float() + (high.float() @ low.float()).to(base.device)
    return merged

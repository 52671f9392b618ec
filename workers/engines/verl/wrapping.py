"""`Wrapping`: settings for models wrapped by verl's engines; verl's batches, and figures of logits.

Import the module after `platform.choose_platform`: verl decides on devices during its import.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from tensordict import TensorDict
from torch import Tensor

from rftd.workers.engines.learner.model import load_model
from rftd.workers.engines.verl.arguments import VerlTrainerArgs

with warnings.catch_warnings():
    # It warns of each engine of its own that is not installed.
    warnings.simplefilter("ignore")
    from verl.utils import tensordict_utils

Outputs = Mapping[str, Tensor]
"""A model's outputs at each position of a micro-batch, by verl's names  # [P] float32 each"""
FIGURES: Final = "rftd_figures"
"""Key under which a batch names the requested figures of complete distributions: `entropy_signals`, `squares`."""
_ROWS: Final = 1024
"""Positions whose logits are processed at once."""
LossOf = Callable[[Outputs], Tensor]
"""Function of a model's outputs: the loss of a micro-batch  # []"""


@dataclass(frozen=True, slots=True)
class Wrapping:
    """The settings of a model spread over ranks."""

    arguments: VerlTrainerArgs
    """The engine's arguments."""
    device: torch.device
    """This rank's device."""
    dtype: str
    """Dtype of forward passes, `float32` or `bfloat16`; weights are float32."""
    trust_remote_code: bool


def read_critic(folder: Path, *, trust_remote_code: bool) -> Any:
    """Reads the folder's decoder on the host, below a head of zeros, so that initially every expected return is
    zero.
    """
    from transformers import AutoModelForTokenClassification

    # Read as a language model first, whose errors say what a folder lacks; its decoder is the critic's.
    model = load_model(folder, torch.device("cpu"), trust_remote_code=trust_remote_code)
    config = model.config
    config.num_labels = 1
    maker: Any = AutoModelForTokenClassification
    with torch.device("meta"):
        module = maker.from_config(config, dtype=torch.float32)
    setattr(module, module.base_model_prefix, model.base_model)
    module.score = torch.nn.Linear(config.hidden_size, 1, bias=False)
    torch.nn.init.zeros_(module.score.weight)
    return module.eval()


def text_batch(
    ids: Tensor,
    lengths: Tensor,
    temperatures: Tensor,
    inverse: Tensor | None,
    *,
    use_remove_padding: bool,
    entropy: bool,
    figures: str,
) -> TensorDict:
    """Returns texts in verl's form  # ids [P], lengths [S], temperatures [S], inverse temperatures [P]"""
    offsets = torch.zeros(len(lengths) + 1, dtype=torch.int64)
    torch.cumsum(lengths, 0, out=offsets[1:])
    positions = torch.arange(len(ids)) - offsets[:-1].repeat_interleave(lengths)

    def nested(values: Tensor) -> Tensor:
        tensor: Tensor = torch.nested.nested_tensor_from_jagged(values, offsets)
        return tensor

    columns = {"input_ids": nested(ids), "position_ids": nested(positions), "temperature": temperatures}
    if inverse is not None:
        columns["inverse_temperatures"] = nested(inverse)
    batch = TensorDict(columns, batch_size=[len(lengths)])
    flags = {"use_remove_padding": use_remove_padding, "calculate_entropy": entropy, FIGURES: figures}
    tensordict_utils.assign_non_tensor(batch, **flags)
    return batch


def requested_figures(batch: TensorDict) -> list[str]:
    """Returns the names of the figures of complete distributions requested by a batch."""
    names: list[str] = tensordict_utils.get_non_tensor_data(data=batch, key=FIGURES, default="").split()
    return names


def distribution_figure(
    name: str, logits: Tensor, temperatures: Tensor, *, group: dist.ProcessGroup | None = None
) -> Tensor:
    """Computes a sum over the vocabulary at each position, some positions at a time  # [P, V], [P] -> [P]

    The terms are p * p (H + log p) for `entropy_signals`, and p * p for `squares`, as on the torch engine. `group` are
    the ranks that divide the vocabulary.
    """

    def summed(values: Tensor) -> Tensor:
        if group is not None:
            dist.all_reduce(values, group=group)
        return values

    sums = []
    for rows, scales in zip(torch.split(logits, _ROWS), torch.split(temperatures[:, None], _ROWS), strict=True):
        scaled = rows / scales
        if group is None:
            logprobs = torch.log_softmax(scaled, dim=-1)
        else:
            top = scaled.amax(-1, keepdim=True)
            dist.all_reduce(top, dist.ReduceOp.MAX, group=group)
            scaled = scaled - top
            logprobs = scaled - summed(scaled.exp().sum(-1, keepdim=True)).log()
        probabilities = logprobs.exp()
        entropies = summed(-(probabilities * logprobs).sum(-1, keepdim=True))
        factor = entropies + logprobs if name == "entropy_signals" else 1.0
        sums.append(summed((probabilities.square() * factor).sum(-1)))
    return torch.cat(sums)

"""The model: whole prompts in, one token more for each row, new weights in place."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.cache_utils import Cache

from rftd.ops.errors import DataError, RolloutError
from rftd.workers.pretrained import read_model
from rftd.workers.rollout.engines.torch import attention
from rftd.workers.rollout.engines.torch.adapters import AdaptedWeights
from rftd.workers.rollout.engines.torch.cache import Prefilled, SlotCache
from rftd.workers.rollout.engines.torch.fused import fuse
from rftd.workers.weights.adapter import is_adapter

_DTYPES: Final = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


class Network:
    """A transformers causal language model, run by the engine's cache and masks."""

    def __init__(self, model: Any, tokenizer: PreTrainedTokenizerBase, eos: frozenset[int], *, max_len: int) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.eos = eos
        embedding = model.get_input_embeddings()
        self.vocabulary: int = embedding.weight.shape[0]
        self.dtype: torch.dtype = embedding.weight.dtype
        self.device: torch.device = embedding.weight.device
        accepted = inspect.signature(model.forward).parameters
        self._fused = fuse(model, max_len=max_len)
        self._adapted = AdaptedWeights()
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}

    @classmethod
    def load(cls, folder: str, *, max_len: int, dtype: str) -> Network:
        """The model in `folder`, without touching a network. Raises DataError if there is none that can be run."""
        attention.register()
        if dtype not in _DTYPES:
            raise DataError(f"the torch engine has no dtype {dtype!r}", fix=f"one of {', '.join(_DTYPES)}")
        if not Path(folder).is_dir():
            raise DataError("no model folder", where=folder, fix="model.model_path must name a Hugging Face folder")
        try:
            model = read_model(folder, dtype=_DTYPES[dtype], attn_implementation=attention.NAME)
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise DataError(f"the model cannot be loaded: {error}", where=folder) from error
        model.requires_grad_(False).train(False)
        ends = {tokenizer.eos_token_id, *_ids(model.generation_config), *_ids(model.config)}
        return cls(model, tokenizer, frozenset(end for end in ends if isinstance(end, int)), max_len=max_len)

    def prefill(self, prompts: Sequence[Sequence[int]]) -> tuple[torch.Tensor, Prefilled]:
        """Logits after each prompt, and what the cache needs of them  # [U, V]"""
        longest = max(map(len, prompts))
        pads = [longest - len(prompt) for prompt in prompts]
        ids = torch.tensor([[0] * pad + list(prompt) for pad, prompt in zip(pads, prompts, strict=True)])  # [U, P]
        column = torch.arange(longest)
        begin = torch.tensor(pads).view(-1, 1)  # [U, 1]
        hidden = (column > column.view(-1, 1)) | (column < begin).unsqueeze(1)  # [U, P, P]
        mask = (hidden * attention.masked(self.dtype)).to(self.dtype).unsqueeze(1)  # [U, 1, P, P]
        prefilled = Prefilled()
        positions = (column - begin).clamp_(min=0)
        logits = self._forward(ids.to(self.device), positions.to(self.device), mask.to(self.device), prefilled)
        return logits, prefilled

    def decode(self, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor, cache: SlotCache) -> torch.Tensor:
        """Logits after one token more in each row  # [N, 1], [N, 1], [N, 1, 1, W] -> [N, V]"""
        return self._forward(ids, positions, mask, cache)

    def _forward(self, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor, cache: Cache) -> torch.Tensor:
        if self._fused is not None:
            return self._fused(ids, positions, mask, cache)
        output = self.model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=mask,
            past_key_values=cache,
            use_cache=True,
            **self._last_only,
        )
        logits: torch.Tensor = output.logits[:, -1]
        return logits

    def assign(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copies new weights over the old, all or none; those of an adapter are added to the base weights.

        Raises RolloutError if they are not this model's.
        """
        own: dict[str, torch.Tensor] = self.model.state_dict()
        if is_adapter(tensors):
            tensors = self._adapted.whole(tensors, own)
            missing = []
        else:
            missing = _lacking(tensors, own)
        unknown = [name for name in tensors if name not in own]
        wrong = [name for name in tensors if name in own and tensors[name].shape != own[name].shape]
        broken = [name for name, tensor in tensors.items() if not torch.isfinite(tensor).all()]
        for names, what in (
            (missing, "lack"),
            (unknown, "hold, unknown to this model,"),
            (wrong, "have another shape of"),
            (broken, "have NaN or infinity in"),
        ):
            if names:
                raise RolloutError(f"the new weights {what} {names[0]!r} and {len(names) - 1} more tensors")
        for name, tensor in tensors.items():
            own[name].copy_(tensor)


def _lacking(tensors: Mapping[str, torch.Tensor], own: Mapping[str, torch.Tensor]) -> list[str]:
    """Names of the network's tensors that are not given, under this name or that of a tied one."""
    present = {own[name].data_ptr() for name in tensors if name in own}
    return [name for name in own if name not in tensors and own[name].data_ptr() not in present]


def _ids(config: object) -> list[object]:
    value = getattr(config, "eos_token_id", None)
    return list(value) if isinstance(value, list | tuple) else [value]

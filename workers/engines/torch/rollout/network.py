"""`Network`: the model: prefills complete prompts, decodes a token for each row, and takes new weights in place."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.cache_utils import Cache

from rftd.ops.errors import DataError, RolloutError
from rftd.workers.devices.pinned_transfer import to_device
from rftd.workers.engines.torch.rollout import attention
from rftd.workers.engines.torch.rollout.cache import Prefilled
from rftd.workers.engines.torch.rollout.fused import fuse
from rftd.workers.engines.torch.rollout.transfer import Incoming, has_room
from rftd.workers.models.model_type import model_type
from rftd.workers.models.pretrained import read_model
from rftd.workers.weights.adapter import adapted, changes, is_adapter
from rftd.workers.weights.finite import is_finite


class AdaptedWeights:
    """Base weights of adapted modules, while the network holds base plus adapter."""

    def __init__(self) -> None:
        """Begins without base weights; the first adapter stores them."""
        self._base: dict[str, torch.Tensor] = {}

    def kept(self) -> Iterable[torch.Tensor]:
        """Returns the stored base weights, for moving them between device and host."""
        return self._base.values()

    def whole(
        self, adapter: Mapping[str, torch.Tensor], current: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Returns base + B A for each module adapted by `adapter`, in float32. `current` are the network's weights: at
        the first call, the base.

        Raises RolloutError for an adapter of another model.
        """
        names = changes(adapter).keys() & current.keys()
        bases = self._base or {name: current[name].clone() for name in names}
        sums = adapted(adapter, bases)
        # Only now: a refused adapter must not decide which modules are adapted.
        self._base = bases
        return sums


_DTYPES: Final = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
"""torch's dtypes by name."""

CPU: Final = torch.device("cpu")
"""torch's CPU device."""


def dtype_of(name: str) -> torch.dtype:
    """Returns the torch dtype of that name. Raises DataError for an unsupported name."""
    if name not in _DTYPES:
        raise DataError(f"the torch engine has no dtype {name!r}", fix=f"one of {', '.join(_DTYPES)}")
    return _DTYPES[name]


class Network:
    """A transformers causal language model, run with the engine's cache and masks."""

    def __init__(
        self,
        model: Any,
        tokenizer: PreTrainedTokenizerBase,
        eos: frozenset[int],
        *,
        max_len: int,
        takes_attention: bool = True,
    ) -> None:
        """`eos` are the ids that end a response. `takes_attention`: the model's layers can use the engine's
        attention.
        """
        self.model = model
        self.takes_attention = takes_attention
        self.tokenizer = tokenizer
        self.eos = eos
        embedding = model.get_input_embeddings()
        self.vocabulary: int = embedding.weight.shape[0]
        self.dtype: torch.dtype = embedding.weight.dtype
        self.device: torch.device = embedding.weight.device
        accepted = inspect.signature(model.forward).parameters
        self.fused = fuse(model, max_len=max_len)
        self._adapted = AdaptedWeights()
        self._incoming: Incoming | None = None
        self.max_len = max_len
        self._can_limit_logits = "logits_to_keep" in accepted

    @classmethod
    def load(
        cls,
        folder: str,
        *,
        max_len: int,
        dtype: str,
        device: torch.device = CPU,
        trust_remote_code: bool = False,
    ) -> Network:
        """Loads the model in `folder` onto the device, without network access. Raises DataError if loading fails."""
        attention.register()
        numbers = dtype_of(dtype)
        if not Path(folder).is_dir():
            raise DataError("no model folder", where=folder, fix="model.model_path must name a Hugging Face folder")
        trusted = {"trust_remote_code": trust_remote_code}
        try:
            model = _with_attention(folder, numbers, trusted)
            takes_attention = model is not None
            if model is None:
                model = read_model(folder, dtype=numbers, **trusted)
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, **trusted)
        except (DataError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # architectures may raise anything
            raise DataError(
                f"the torch engine cannot load {model_type(Path(folder))} models: {type(error).__name__}: {error}",
                where=folder,
                fix="use another model, or check its config.json, tokenizer and safetensors files",
            ) from error
        model.requires_grad_(False).train(False).to(device)
        ends = {tokenizer.eos_token_id, *_end_ids(model.generation_config), *_end_ids(model.config)}
        eos_ids = frozenset(end for end in ends if isinstance(end, int))
        return cls(model, tokenizer, eos_ids, max_len=max_len, takes_attention=takes_attention)

    def kept(self) -> Iterator[torch.Tensor]:
        """Yields all tensors of the model that stay on the device between requests."""
        yield from self.model.parameters()
        yield from self.model.buffers()
        yield from self._adapted.kept()

    def check_token(self, token: int) -> None:
        """Raises RolloutError for a biased token id outside of the model's vocabulary."""
        if not 0 <= token < self.vocabulary:
            raise RolloutError(
                f"logit_bias names token {token}, and the model has {self.vocabulary} tokens",
                field="rollout_args.logit_bias",
                fix=f"name token ids of this model, 0 to {self.vocabulary - 1}",
            )

    def last_places(self, count: int) -> dict[str, int]:
        """Returns the argument that limits logits to the last `count` positions; empty if the model has none."""
        return {"logits_to_keep": count} if self._can_limit_logits else {}

    def prefill(self, prompts: Sequence[Sequence[int]]) -> tuple[torch.Tensor, Prefilled]:
        """Returns the logits after each prompt, with the keys and values for the cache  # [U, V]"""
        longest = max(map(len, prompts))
        pads = [longest - len(prompt) for prompt in prompts]
        # Padded on the left, so that all prompts end in the column before the next token.
        padded = np.array([[0] * pad + list(prompt) for pad, prompt in zip(pads, prompts, strict=True)], np.int64)
        ids = to_device(padded, self.device)  # [U, P]
        column = torch.arange(longest, device=self.device)
        begin = to_device(np.array(pads, np.int64), self.device).view(-1, 1)  # [U, 1]
        hidden = (column > column.view(-1, 1)) | (column < begin).unsqueeze(1)  # [U, P, P]
        mask = (hidden * attention.masked(self.dtype)).to(self.dtype).unsqueeze(1)  # [U, 1, P, P]
        prefilled = Prefilled()
        positions = (column - begin).clamp_(min=0)
        logits = self._forward(ids, positions, mask, prefilled)
        return logits, prefilled

    def decode(self, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor, cache: Cache) -> torch.Tensor:
        """Returns the logits after one more token in each row  # [N, 1], [N, 1], [N, 1, 1, W] -> [N, V]"""
        return self._forward(ids, positions, mask, cache)

    def _forward(self, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor, cache: Cache) -> torch.Tensor:
        """Returns the logits after the last token of each row, by the lean forward if there is one."""
        if self.fused is not None:
            return self.fused(ids, positions, mask, cache)
        output = self.model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=mask,
            past_key_values=cache,
            use_cache=True,
            **self.last_places(1),
        )
        logits: torch.Tensor = output.logits[:, -1]
        return logits

    def verified(self, tensors: Mapping[str, torch.Tensor], *, ahead: bool = False) -> Mapping[str, torch.Tensor]:
        """Checks new weights, and returns the tensors for `assign`; on a CPU an adapter is added to the base weights.

        `ahead`: copies them to a GPU in advance, if there is room in addition to the weights in use, so that decoding
        pauses only for a copy within the GPU. The network is not changed, and another thread may decode meanwhile; only
        one may verify at a time. Raises RolloutError for another model's tensors, or numbers that are not finite.
        """
        current: dict[str, torch.Tensor] = self.model.state_dict()
        adapts = is_adapter(tensors)
        if adapts:
            _refuse_broken(tensors)
            if self.device.type != "cpu":
                # The base weights may rest on the host, and only the decoding thread brings them back.
                return tensors
            tensors = self._adapted.whole(tensors, current)
        missing = [] if adapts else _lacking(tensors, current)
        unknown = [name for name in tensors if name not in current]
        wrong = [name for name in tensors if name in current and tensors[name].shape != current[name].shape]
        for names, fault in (
            (missing, "lack"),
            (unknown, "hold, unknown to this model,"),
            (wrong, "have another shape of"),
        ):
            if names:
                raise _refusal(names, fault)
        if ahead and not adapts and self.device.type == "cuda" and has_room(tensors, self.device):
            self._incoming = self._incoming or Incoming(self.device)
            # Free memory may be taken by now; decoding then waits a little longer.
            with suppress(torch.OutOfMemoryError):
                return self._incoming.copy_to_device(tensors, _refuse_broken)
        _refuse_broken(tensors)
        return tensors

    def assign(self, verified: Mapping[str, torch.Tensor]) -> None:
        """Copies tensors returned by `verified` over the weights, all or none.

        Raises RolloutError for another model's adapter, on a GPU.
        """
        current: dict[str, torch.Tensor] = self.model.state_dict()
        if is_adapter(verified):
            verified = self._adapted.whole(verified, current)
            _refuse_broken(verified)
        # Verified before and copied in place: half of a swap would be a model that never existed, and views of the
        # fused matrices, recordings and the adapters' base depend on these addresses.
        for name, tensor in verified.items():
            current[name].copy_(tensor)


def _with_attention(folder: str, dtype: torch.dtype, trusted: Mapping[str, bool]) -> Any | None:
    """Loads the model with the engine's attention; None if its layers have attention of their own."""
    try:
        model = read_model(folder, dtype=dtype, attn_implementation=attention.NAME, **trusted)
    except KeyError as error:
        # The model looks attention up in a table of its own, without the engine's.
        if error.args != (attention.NAME,):
            raise
        return None
    return model if model._can_set_attn_implementation() else None


def _lacking(tensors: Mapping[str, torch.Tensor], current: Mapping[str, torch.Tensor]) -> list[str]:
    """Returns the names of the network's tensors missing from `tensors`, also under the name of a tied tensor."""
    # By address, because tied weights are one tensor under two names, and a checkpoint holds one.
    present = {current[name].data_ptr() for name in tensors if name in current}
    return [name for name in current if name not in tensors and current[name].data_ptr() not in present]


def _refuse_broken(tensors: Mapping[str, torch.Tensor]) -> None:
    """Raises RolloutError for tensors with numbers that are not finite."""
    broken = [name for name, tensor in tensors.items() if not is_finite(tensor)]
    if broken:
        raise _refusal(broken, "have NaN or infinity in")


def _refusal(names: Sequence[str], fault: str) -> RolloutError:
    """Builds the error for new weights with a fault in the named tensors."""
    return RolloutError(f"the new weights {fault} {names[0]!r} and {len(names) - 1} more tensors")


def _end_ids(config: object) -> list[object]:
    """Returns the end tokens of a configuration as a list."""
    end_ids = getattr(config, "eos_token_id", None)
    return list(end_ids) if isinstance(end_ids, list | tuple) else [end_ids]

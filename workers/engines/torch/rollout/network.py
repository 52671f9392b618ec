"""`Network`: the model, which takes whole prompts, decodes a token for each row, and gets new weights in place."""

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
    """Keeps the base weights of adapted modules, for the network itself holds the sum."""

    def __init__(self) -> None:
        self._base: dict[str, torch.Tensor] = {}

    def kept(self) -> Iterable[torch.Tensor]:
        """The base weights."""
        return self._base.values()

    def whole(self, adapter: Mapping[str, torch.Tensor], own: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Base + B A for each adapted module, in float32. `own` are the network's present weights, the base's at first.

        Raises RolloutError if the adapter belongs to another model.
        """
        names = changes(adapter).keys() & own.keys()
        bases = self._base or {name: own[name].clone() for name in names}
        made = adapted(adapter, bases)
        # Only now: an adapter that is refused must not decide which modules are adapted.
        self._base = bases
        return made


_DTYPES: Final = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

CPU: Final = torch.device("cpu")


def dtype_of(name: str) -> torch.dtype:
    """The torch dtype of that name. Raises DataError for one that the engine does not have."""
    if name not in _DTYPES:
        raise DataError(f"the torch engine has no dtype {name!r}", fix=f"one of {', '.join(_DTYPES)}")
    return _DTYPES[name]


class Network:
    """A transformers causal language model, run by the engine's cache and masks."""

    def __init__(
        self,
        model: Any,
        tokenizer: PreTrainedTokenizerBase,
        eos: frozenset[int],
        *,
        max_len: int,
        takes_attention: bool = True,
    ) -> None:
        """`takes_attention`: the model's layers can run the engine's attention."""
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
        self._keeps_some = "logits_to_keep" in accepted

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
        """The model in `folder`, on the device; it touches no network. Raises DataError if none can be run."""
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
        except Exception as error:  # an architecture may fail in its own way
            raise DataError(
                f"the torch engine cannot load {model_type(Path(folder))} models: {type(error).__name__}: {error}",
                where=folder,
                fix="use another model, or check its config.json, tokenizer and safetensors files",
            ) from error
        model.requires_grad_(False).train(False).to(device)
        ends = {tokenizer.eos_token_id, *_ids(model.generation_config), *_ids(model.config)}
        found = frozenset(end for end in ends if isinstance(end, int))
        return cls(model, tokenizer, found, max_len=max_len, takes_attention=takes_attention)

    def kept(self) -> Iterator[torch.Tensor]:
        """Everything of the model that lies on the device between two requests."""
        yield from self.model.parameters()
        yield from self.model.buffers()
        yield from self._adapted.kept()

    def check_token(self, token: int) -> None:
        """Raises RolloutError for a token that has a bias and is none of this model's."""
        if not 0 <= token < self.vocabulary:
            raise RolloutError(
                f"logit_bias names token {token}, and the model has {self.vocabulary} tokens",
                field="rollout_args.logit_bias",
                fix=f"name token ids of this model, 0 to {self.vocabulary - 1}",
            )

    def last_places(self, count: int) -> dict[str, int]:
        """The argument by which the model computes logits at the last places alone, if it knows one."""
        return {"logits_to_keep": count} if self._keeps_some else {}

    def prefill(self, prompts: Sequence[Sequence[int]]) -> tuple[torch.Tensor, Prefilled]:
        """Logits after each prompt, and what the cache needs of them  # [U, V]"""
        longest = max(map(len, prompts))
        pads = [longest - len(prompt) for prompt in prompts]
        # On the left, so that all prompts end in the column that the next token is decoded after.
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
        """Logits after one token more in each row  # [N, 1], [N, 1], [N, 1, 1, W] -> [N, V]"""
        return self._forward(ids, positions, mask, cache)

    def _forward(self, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor, cache: Cache) -> torch.Tensor:
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
        """The tensors that `assign` takes; those of an adapter on a CPU are added to the base weights.

        `ahead`: they are copied to a GPU already, if it has room for them beside those in use, so that decoding stands
        still for a copy within the GPU's memory, not for one from the host.

        Nothing of the network changes, and another thread may decode meanwhile; only one may verify at a time. Raises
        RolloutError if they are not this model's, or not finite.
        """
        own: dict[str, torch.Tensor] = self.model.state_dict()
        adapts = is_adapter(tensors)
        if adapts:
            _refuse_broken(tensors)
            if self.device.type != "cpu":
                # The base weights may rest on the host, from where only the thread that decodes brings them back.
                return tensors
            tensors = self._adapted.whole(tensors, own)
        missing = [] if adapts else _lacking(tensors, own)
        unknown = [name for name in tensors if name not in own]
        wrong = [name for name in tensors if name in own and tensors[name].shape != own[name].shape]
        for names, what in (
            (missing, "lack"),
            (unknown, "hold, unknown to this model,"),
            (wrong, "have another shape of"),
        ):
            if names:
                raise _refused(names, what)
        if ahead and not adapts and self.device.type == "cuda" and has_room(tensors, self.device):
            self._incoming = self._incoming or Incoming(self.device)
            # What was free may be somebody else's by now; then decoding waits a little longer.
            with suppress(torch.OutOfMemoryError):
                return self._incoming.brought(tensors, _refuse_broken)
        _refuse_broken(tensors)
        return tensors

    def assign(self, verified: Mapping[str, torch.Tensor]) -> None:
        """Copies what `verified` gave over the old weights, all or none.

        Raises RolloutError for an adapter, on a GPU, of another model.
        """
        own: dict[str, torch.Tensor] = self.model.state_dict()
        if is_adapter(verified):
            verified = self._adapted.whole(verified, own)
            _refuse_broken(verified)
        # Verified before and copied in place: half of a swap would be a model that never existed, and views of the
        # fused matrices, recordings and the adapters' base rest on these addresses.
        for name, tensor in verified.items():
            own[name].copy_(tensor)


def _with_attention(folder: str, dtype: torch.dtype, trusted: Mapping[str, bool]) -> Any | None:
    """The model with the engine's attention; None if its layers compute attention in a way of their own."""
    try:
        model = read_model(folder, dtype=dtype, attn_implementation=attention.NAME, **trusted)
    except KeyError as error:
        # The model looks its attention up in a table of its own, in which the engine's has no place.
        if error.args != (attention.NAME,):
            raise
        return None
    return model if model._can_set_attn_implementation() else None


def _lacking(tensors: Mapping[str, torch.Tensor], own: Mapping[str, torch.Tensor]) -> list[str]:
    """Names of the network's tensors that are not given, under this name or that of a tied one."""
    # By address, for tied weights are one tensor under two names, of which a checkpoint holds one.
    present = {own[name].data_ptr() for name in tensors if name in own}
    return [name for name in own if name not in tensors and own[name].data_ptr() not in present]


def _refuse_broken(tensors: Mapping[str, torch.Tensor]) -> None:
    broken = [name for name, tensor in tensors.items() if not is_finite(tensor)]
    if broken:
        raise _refused(broken, "have NaN or infinity in")


def _refused(names: Sequence[str], what: str) -> RolloutError:
    return RolloutError(f"the new weights {what} {names[0]!r} and {len(names) - 1} more tensors")


def _ids(config: object) -> list[object]:
    value = getattr(config, "eos_token_id", None)
    return list(value) if isinstance(value, list | tuple) else [value]

"""`RolloutWorker`: our part of each of vLLM's worker processes, called by `collective_rpc`.

Arguments and answers are plain lists and numbers, so nothing is pickled. New weights are opened, verified and prepared
on a thread, while the worker goes on generating; only the swap itself is between two steps.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
from vllm.v1.worker import gpu_model_runner

from rftd.ops.decoding import converted
from rftd.ops.errors import RftdError, RolloutError
from rftd.workers.engines.torch.rollout.transfer import Incoming
from rftd.workers.engines.vllm.prepared_weights import PreparedWeights
from rftd.workers.engines.vllm.sampler import PolicySampler
from rftd.workers.engines.vllm.shapes import BROKEN, Expected, base_weights, check_finite, refuse
from rftd.workers.weights.adapter import adapted, changes, is_adapter
from rftd.workers.weights.channel import WeightsRef
from rftd.workers.weights.finite import is_finite
from rftd.workers.weights.opened_tensors import opened_tensors
from rftd.workers.weights.registry import Channels

_PATIENCE_S: Final = 0.002
"""Who asks for the state of weights waits so long at most: small ones are opened in milliseconds."""
_PATIENCE_IN_ALL_S: Final = 0.006
"""The longest that decoding waits so for weights that turn out to be large."""


class WeightsRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """The reason for which weights cannot be used here."""

    code: str
    what: str
    where: str
    fix: str


class OpeningState(msgspec.Struct, frozen=True, kw_only=True):
    """How far weights are on their way into use."""

    opening: bool
    refusal: WeightsRefusal | None = None


class SwapMarks(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker says of a swap."""

    at_s: float
    """The machine's monotonic clock when the new weights came into use."""
    drawn: dict[str, int]
    """The number of tokens that each request had drawn by then, by vLLM's id of the request."""


class RolloutWorker:
    """vLLM adds this class to the bases of its worker, so its names must be none of vLLM's."""

    model_runner: Any
    rollout_weights: OpenedWeights

    def prepare_rollouts(self, folder: str) -> int:
        """Sets the sampler, and learns what the weights of the model in `folder` consist of; answers its process id.

        Raises RolloutError for a model runner that would not use the sampler.
        """
        runner = self.model_runner
        # Its second one has an attribute of this name, too, and another sampler: log-probabilities would be wrong.
        if not isinstance(runner, gpu_model_runner.GPUModelRunner):
            raise RolloutError(
                f"vLLM chose the model runner {type(runner).__module__}.{type(runner).__qualname__} for this model, "
                "which has no log-probabilities at a request's temperature",
                fix="use a model that vLLM's first runner has, or engine_type: torch",
            )
        # Replaced rather than configured: vLLM has no mode for log-probabilities at a row's temperature.
        runner.sampler = PolicySampler(runner)
        _keep_unmasked(runner.sampler)
        model = runner.get_model()
        prepares = runner.lora_config is None and PreparedWeights.possible(model)
        self.rollout_weights = OpenedWeights(Path(folder), runner.device, model if prepares else None)
        return os.getpid()

    def open_rollout_weights(self, weights: dict[str, Any]) -> dict[str, Any]:
        """Begins to open and verify the weights, and answers as below; nothing that is in use changes."""
        self.rollout_weights.begin(converted(weights, WeightsRef))
        return self.rollout_weights_state()

    def rollout_weights_state(self) -> dict[str, Any]:
        """How far they are: an `OpeningState`, in plain data."""
        state: dict[str, Any] = msgspec.to_builtins(self.rollout_weights.state())
        return state

    def drop_rollout_weights(self) -> None:
        """Lets go of opened weights that are not to be used, for another worker refused them."""
        self.rollout_weights.let_go()

    def swap_rollout_weights(self) -> dict[str, Any]:
        """Uses the opened weights from the next step on. Answers a `SwapMarks`, in plain data."""
        opened = self.rollout_weights
        runner = self.model_runner
        try:
            if opened.prepared is not None:
                opened.prepared.swap()
                runner.reset_encoder_cache()
                runner.reset_mm_cache()
            else:
                assert opened.tensors is not None, "weights are opened before they are used"
                # Not `load_weights`: packed layers have freed the tensors that it writes to.
                runner.reload_weights(weights_iterator=iter(opened.tensors.items()))
                _repack_tied_output(runner.get_model())
        finally:
            self.rollout_weights.let_go()
        drawn = {name: len(request.output_token_ids) for name, request in runner.requests.items()}
        marks: dict[str, Any] = msgspec.to_builtins(SwapMarks(at_s=time.monotonic(), drawn=drawn))
        return marks


def _keep_unmasked(sampler: PolicySampler) -> None:
    """Shows the sampler the logits before a schema bans tokens in them."""
    # vLLM's runner masks in place, between the model and the sampler, and has no place of its own for anybody there.
    mask = gpu_model_runner.apply_grammar_bitmask

    def kept_and_masked(scheduled: Any, grammar: Any, batch: Any, logits: torch.Tensor) -> None:
        sampler.keep_unmasked(logits)
        mask(scheduled, grammar, batch, logits)

    gpu_model_runner.apply_grammar_bitmask = kept_and_masked


class OpenedWeights:
    """Weights on their way into use: opened where the channel holds them, verified, and prepared, on a thread."""

    def __init__(self, folder: Path, device: torch.device, model: torch.nn.Module | None = None) -> None:
        """`folder`: of the model that they are to be of, which runs on the device; `model`, if they are prepared."""
        self._device = device
        self._model = model
        self._incoming: Incoming | None = None
        self.tensors: Mapping[str, torch.Tensor] | None = None
        """The verified weights, unless they were prepared."""
        self.prepared: PreparedWeights | None = None
        self._folder = folder
        self._expected: Expected | None = None
        self._base: Mapping[str, torch.Tensor] | None = None
        self._channels = Channels()
        self._held = ExitStack()
        self._refusal: WeightsRefusal | None = None
        self._thread: threading.Thread | None = None
        self._patience_s = 0.0

    def begin(self, weights: WeightsRef) -> None:
        """Starts the thread."""
        self.let_go()
        self._refusal = None
        self._patience_s = _PATIENCE_IN_ALL_S
        self._thread = threading.Thread(target=self._open, args=(weights,), name="open-weights", daemon=True)
        self._thread.start()

    def state(self) -> OpeningState:
        """How far they are."""
        if self._thread is not None:
            waits_s = min(_PATIENCE_S, self._patience_s)
            self._patience_s -= waits_s
            self._thread.join(waits_s)
            if self._thread.is_alive():
                return OpeningState(opening=True)
            self._thread = None
        return OpeningState(opening=False, refusal=self._refusal)

    def let_go(self) -> None:
        """Closes what is open."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.tensors = None
        self._held.close()
        if self.prepared is not None:
            # To free as much memory takes long enough to be seen by those who wait for tokens.
            threading.Thread(target=self.prepared.free, name="free-weights", daemon=True).start()
            self.prepared = None

    def _open(self, weights: WeightsRef) -> None:
        try:
            if self._expected is None:
                self._expected = Expected.of(self._folder)
            with ExitStack() as stack:
                channel = self._channels.of(weights.method)
                found = stack.enter_context(opened_tensors(channel, weights, self._device))
                whole = self._whole(found, self._expected)
                self.prepared = self._prepared(whole)
                if self.prepared is not None:
                    return
                self.tensors = whole
                self._held = stack.pop_all()
        except RftdError as error:
            self._refusal = _refusal(error)
        except Exception as error:  # a folder may be damaged in its own way
            self._refusal = _refusal(RolloutError(f"{type(error).__name__}: {error}", where=weights.path))

    def _prepared(self, whole: Mapping[str, torch.Tensor]) -> PreparedWeights | None:
        """The weights, finite, ready to be swapped in; None if they are finite, and are to be loaded by the swap.

        Raises RolloutError for others.
        """
        if self._model is not None and self._device.type == "cuda":
            # What was free may be somebody else's by now; then decoding waits until they are loaded.
            with suppress(torch.OutOfMemoryError):
                return self._prepared_on_gpu(self._model, whole)
        base = self._base or {}
        check_finite({name: each for name, each in whole.items() if each is not base.get(name)})
        if self._model is not None and self._device.type == "cpu":
            return PreparedWeights.of(self._model, whole.items())
        return None

    def _prepared_on_gpu(self, model: torch.nn.Module, whole: Mapping[str, torch.Tensor]) -> PreparedWeights:
        self._incoming = self._incoming or Incoming(self._device)
        broken: list[str] = []

        def brought() -> Iterator[tuple[str, torch.Tensor]]:
            for name, tensor in whole.items():
                there = tensor if tensor.is_cuda else incoming.one(tensor)
                # Here and not where they came from: the GPU reads them a hundred times as fast.
                if not is_finite(there):
                    broken.append(name)
                yield name, there

        incoming = self._incoming
        sizes = [each.nbytes for each in whole.values()]
        # Of one layer there are two copies for a moment: as it came, and as it is computed with.
        with self._device, incoming.beside(sum(sizes) + 2 * max(sizes)):
            made = PreparedWeights.of(model, brought(), in_place=True)
            refuse(broken, BROKEN)
        return made

    def _whole(self, found: Mapping[str, torch.Tensor], expected: Expected) -> Mapping[str, torch.Tensor]:
        """The model's weights, those of an adapter added to the base. Raises RolloutError for another model's."""
        if not is_adapter(found):
            expected.check(found)
            return found
        if self._base is None:
            # A folder may hold more than the model, such as buffers that are computed by now.
            stored = base_weights(self._folder)
            self._base = {name: stored[name] for name in expected.shapes if name in stored}
        # To the host, where the base is: an adapter may have come from another device.
        found = {name: tensor.cpu() for name, tensor in found.items()}
        made = adapted(found, {name: self._base[name] for name in changes(found) if name in self._base})
        # Whole, though most of it is as it was: layers that are packed together are loaded together.
        whole = {**self._base, **made}
        expected.check(whole)
        return whole


def _refusal(error: RftdError) -> WeightsRefusal:
    return WeightsRefusal(code=error.code, what=error.what, where=error.where or "", fix=error.fix or "")


def _repack_tied_output(model: Any) -> None:
    """Gives an output layer that is tied to the embeddings what it computes with.

    On a CPU it computes with a packed copy, which vLLM makes anew for every layer that weights are loaded into; a tied
    layer is none of them, and would stay with the old weights.
    """
    head = getattr(model, "lm_head", None)
    method = getattr(head, "quant_method", None)
    if head is not None and method is not None:
        method.process_weights_after_loading(head)

"""`RolloutWorker`: the extension of each of vLLM's worker processes, called by `collective_rpc`.

Arguments and answers are plain lists and numbers, so nothing is pickled. New weights are opened, verified and prepared
on a thread, while the worker continues generating; only the swap itself is between two steps.
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
"""Maximum wait in seconds of one state request for opening weights: small ones open in milliseconds."""
_PATIENCE_IN_ALL_S: Final = 0.006
"""Maximum total of these waits, in seconds, during which large weights delay decoding."""


class WeightsRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why weights cannot be used here: an error's code, text, place and fix."""

    code: str
    """Code of the error."""
    what: str
    """Text of the error."""
    where: str
    """Location named by the error; empty without one."""
    fix: str
    """Advice of the error; empty without one."""


class OpeningState(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of new weights being opened: still opening, ready, or refused."""

    opening: bool
    """True while the weights are being opened."""
    refusal: WeightsRefusal | None = None
    """Reason against the weights; None if there is none so far."""


class SwapMarks(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's report of a swap: the time, and the tokens drawn before by each request."""

    at_s: float
    """Machine's monotonic clock at the swap, in seconds."""
    drawn: dict[str, int]
    """Number of tokens drawn by each request before the swap, by vLLM's id of the request."""


class RolloutWorker:
    """Extension class added by vLLM to the bases of its worker; its names must differ from vLLM's."""

    model_runner: Any
    """vLLM's runner of the model on this worker."""
    rollout_weights: OpenedWeights
    """Weights opened for the next swap."""

    def prepare_rollouts(self, folder: str) -> int:
        """Installs the sampler, and reads the expected weights of the model in `folder`; returns the process id.

        Raises RolloutError for a model runner that would not use the sampler.
        """
        runner = self.model_runner
        # vLLM's second runner also has an attribute of this name, but another sampler: log-probabilities would be
        # wrong.
        if not isinstance(runner, gpu_model_runner.GPUModelRunner):
            raise RolloutError(
                f"vLLM chose the model runner {type(runner).__module__}.{type(runner).__qualname__} for this model, "
                "which has no log-probabilities at a request's temperature",
                fix="use a model that vLLM's first runner has, or engine_type: torch",
            )
        # Replaced, because vLLM has no mode for log-probabilities at a row's temperature.
        runner.sampler = PolicySampler(runner)
        _keep_unmasked(runner.sampler)
        model = runner.get_model()
        prepares = runner.lora_config is None and PreparedWeights.possible(model)
        self.rollout_weights = OpenedWeights(Path(folder), runner.device, model if prepares else None)
        return os.getpid()

    def open_rollout_weights(self, weights: dict[str, Any]) -> dict[str, Any]:
        """Begins to open and verify new weights on a thread; returns an `OpeningState` in plain data. Weights in use
        are not changed.
        """
        self.rollout_weights.begin(converted(weights, WeightsRef))
        return self.rollout_weights_state()

    def rollout_weights_state(self) -> dict[str, Any]:
        """Returns the progress: an `OpeningState`, in plain data."""
        state: dict[str, Any] = msgspec.to_builtins(self.rollout_weights.state())
        return state

    def drop_rollout_weights(self) -> None:
        """Releases opened weights that will not be used, because another worker refused them."""
        self.rollout_weights.let_go()

    def swap_rollout_weights(self) -> dict[str, Any]:
        """Uses the opened weights from the next step on. Returns a `SwapMarks`, in plain data."""
        opened = self.rollout_weights
        runner = self.model_runner
        try:
            if opened.prepared is not None:
                opened.prepared.swap()
                runner.reset_encoder_cache()
                runner.reset_mm_cache()
            else:
                assert opened.tensors is not None, "weights are opened before they are used"
                # Not `load_weights`: packed layers have freed the tensors it writes to.
                runner.reload_weights(weights_iterator=iter(opened.tensors.items()))
                _repack_tied_output(runner.get_model())
        finally:
            self.rollout_weights.let_go()
        drawn = {name: len(request.output_token_ids) for name, request in runner.requests.items()}
        marks: dict[str, Any] = msgspec.to_builtins(SwapMarks(at_s=time.monotonic(), drawn=drawn))
        return marks


def _keep_unmasked(sampler: PolicySampler) -> None:
    """Passes the sampler the logits before a schema bans tokens in them."""
    # vLLM's runner masks in place, between the model and the sampler, without a hook for extensions.
    mask = gpu_model_runner.apply_grammar_bitmask

    def kept_and_masked(scheduled: Any, grammar: Any, batch: Any, logits: torch.Tensor) -> None:
        sampler.keep_unmasked(logits)
        mask(scheduled, grammar, batch, logits)

    gpu_model_runner.apply_grammar_bitmask = kept_and_masked


class OpenedWeights:
    """New weights being opened from a channel, verified and prepared, on a thread."""

    def __init__(self, folder: Path, device: torch.device, model: torch.nn.Module | None = None) -> None:
        """`folder` has the model, which runs on `device`; `model` is the running model, if its layers can be prepared
        in advance.
        """
        self._device = device
        self._model = model
        self._incoming: Incoming | None = None
        self.tensors: Mapping[str, torch.Tensor] | None = None
        """Verified weights, unless they were prepared."""
        self.prepared: PreparedWeights | None = None
        self._folder = folder
        self._expected: Expected | None = None
        self._base: Mapping[str, torch.Tensor] | None = None
        self._channels = Channels()
        self._open_channel = ExitStack()
        self._refusal: WeightsRefusal | None = None
        self._thread: threading.Thread | None = None
        self._patience_s = 0.0

    def begin(self, weights: WeightsRef) -> None:
        """Starts opening and verifying weights on a thread, after releasing earlier ones."""
        self.let_go()
        self._refusal = None
        self._patience_s = _PATIENCE_IN_ALL_S
        self._thread = threading.Thread(target=self._open, args=(weights,), name="open-weights", daemon=True)
        self._thread.start()

    def state(self) -> OpeningState:
        """Returns the progress, after waiting a few milliseconds for small weights."""
        if self._thread is not None:
            waits_s = min(_PATIENCE_S, self._patience_s)
            self._patience_s -= waits_s
            self._thread.join(waits_s)
            if self._thread.is_alive():
                return OpeningState(opening=True)
            self._thread = None
        return OpeningState(opening=False, refusal=self._refusal)

    def let_go(self) -> None:
        """Releases the opened weights; waits for the opening thread first."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.tensors = None
        self._open_channel.close()
        if self.prepared is not None:
            # On a thread: freeing so much memory takes long enough to delay tokens.
            threading.Thread(target=self.prepared.free, name="free-weights", daemon=True).start()
            self.prepared = None

    def _open(self, weights: WeightsRef) -> None:
        """Opens, verifies and prepares weights; a refusal is stored."""
        try:
            if self._expected is None:
                self._expected = Expected.of(self._folder)
            with ExitStack() as stack:
                channel = self._channels.of(weights.method)
                tensors = stack.enter_context(opened_tensors(channel, weights, self._device))
                whole = self._merge_adapter(tensors, self._expected)
                self.prepared = self._prepare(whole)
                if self.prepared is not None:
                    return
                self.tensors = whole
                self._open_channel = stack.pop_all()
        except RftdError as error:
            self._refusal = _refusal(error)
        except Exception as error:  # a folder may be damaged in any way
            self._refusal = _refusal(RolloutError(f"{type(error).__name__}: {error}", where=weights.path))

    def _prepare(self, whole: Mapping[str, torch.Tensor]) -> PreparedWeights | None:
        """Prepares finite weights to be swapped in; None if they must be loaded by the swap itself.

        Raises RolloutError for non-finite weights.
        """
        if self._model is not None and self._device.type == "cuda":
            # Free memory may be taken by now; decoding then waits until they are loaded.
            with suppress(torch.OutOfMemoryError):
                return self._prepare_on_gpu(self._model, whole)
        base = self._base or {}
        check_finite({name: tensor for name, tensor in whole.items() if tensor is not base.get(name)})
        if self._model is not None and self._device.type == "cpu":
            return PreparedWeights.of(self._model, whole.items())
        return None

    def _prepare_on_gpu(self, model: torch.nn.Module, whole: Mapping[str, torch.Tensor]) -> PreparedWeights:
        """Prepares the weights in GPU memory, and checks for non-finite numbers there."""
        self._incoming = self._incoming or Incoming(self._device)
        broken: list[str] = []

        def checked_on_device() -> Iterator[tuple[str, torch.Tensor]]:
            for name, tensor in whole.items():
                on_device = tensor if tensor.is_cuda else incoming.one(tensor)
                # Checked on the GPU, a hundred times as fast as on the host.
                if not is_finite(on_device):
                    broken.append(name)
                yield name, on_device

        incoming = self._incoming
        sizes = [whole_tensor.nbytes for whole_tensor in whole.values()]
        # Two copies of one layer exist for a moment: as received, and in vLLM's form.
        with self._device, incoming.beside(sum(sizes) + 2 * max(sizes)):
            prepared = PreparedWeights.of(model, checked_on_device(), in_place=True)
            refuse(broken, BROKEN)
        return prepared

    def _merge_adapter(self, tensors: Mapping[str, torch.Tensor], expected: Expected) -> Mapping[str, torch.Tensor]:
        """Returns the model's weights, an adapter's added to the base. Raises RolloutError for another model's."""
        if not is_adapter(tensors):
            expected.check(tensors)
            return tensors
        if self._base is None:
            # A folder may have more than the model, such as buffers computed at run time.
            stored = base_weights(self._folder)
            self._base = {name: stored[name] for name in expected.shapes if name in stored}
        # To the host, where the base is: an adapter may have come from another device.
        tensors = {name: tensor.cpu() for name, tensor in tensors.items()}
        sums = adapted(tensors, {name: self._base[name] for name in changes(tensors) if name in self._base})
        # Whole, though mostly unchanged: layers packed together are loaded together.
        whole = {**self._base, **sums}
        expected.check(whole)
        return whole


def _refusal(error: RftdError) -> WeightsRefusal:
    """Returns an error in a form that can be passed between processes."""
    return WeightsRefusal(code=error.code, what=error.what, where=error.where or "", fix=error.fix or "")


def _repack_tied_output(model: Any) -> None:
    """Repacks an output layer tied to the embeddings.

    On a CPU it computes with a packed copy, renewed by vLLM for every layer with loaded weights; a tied layer is not
    loaded itself, and would stay with the old weights.
    """
    head = getattr(model, "lm_head", None)
    method = getattr(head, "quant_method", None)
    if head is not None and method is not None:
        method.process_weights_after_loading(head)

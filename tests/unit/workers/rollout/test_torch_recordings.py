"""Recorded decode steps give the tokens of those that are computed anew, whatever happens to batch and weights.

A tape stands for a CUDA graph: it repeats the operations of one step over the tensors that they had, and calls no
Python of the engine. A number that the host has put into a step, or a tensor that lies elsewhere now, is wrong on it as
it would be in a graph.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from synthetic.models.tiny_models import MAX_LEN, network_of, prompts_of, run, running
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rftd.workers.engines.torch.rollout import cuda_graphs, recordings
from rftd.workers.engines.torch.rollout.batch import Batch
from rftd.workers.engines.torch.rollout.cache import FixedWindow
from rftd.workers.engines.torch.rollout.network import Network
from rftd.workers.engines.torch.rollout.running import Running
from rftd.workers.engines.torch.rollout.trial import try_recorder
from rftd.workers.engines.torch.rollout.uncached import Way
from rftd.workers.generation.engine import Generation

ModelOf = Callable[[str], Path]
LEAN = ["qwen2", "qwen3", "llama"]


def tensors_in(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


class Tape(TorchDispatchMode):
    """One step's operations with their tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, made))
        return made

    def __call__(self) -> None:
        """Repeats them; what came out anew the first time is overwritten where it lies."""
        for function, args, kwargs, made in self.calls:
            for old, new in zip(tensors_in(made), tensors_in(function(*args, **kwargs)), strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)

    def given(self) -> dict[int, torch.Tensor]:
        """The tensors that the step reads and has not made itself, by their addresses."""
        made = {id(tensor) for *_, outcome in self.calls for tensor in tensors_in(outcome)}
        read = [tensor for _, args, kwargs, _ in self.calls for tensor in tensors_in((args, kwargs))]
        return {tensor.data_ptr(): tensor for tensor in read if id(tensor) not in made}


class Recorder:
    """Implements `Recorder` with tapes."""

    def __init__(self) -> None:
        self.tapes: list[Tape] = []
        self.forgotten = 0

    def record(self, step: recordings.Step) -> recordings.Step:
        step()  # the warm-up of a graph
        with Tape() as tape:
            step()
        self.tapes.append(tape)
        return tape

    def forget(self) -> None:
        self.forgotten += 1


@pytest.fixture(autouse=True)
def narrow_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny texts go through several widths."""
    monkeypatch.setattr(recordings, "LEAST_COLUMNS", 16)


def batch_of(network: Network, recorder: Recorder | None, *, ahead: bool = False) -> Batch:
    batch = Batch(network, slots=6, max_len=MAX_LEN, deterministic=False, ahead=ahead, recorder=recorder)
    batch.swapped((0, 0))
    return batch


def requests() -> list[Running]:
    settings: list[dict[str, Any]] = [{"temperature": 0.0}, {"top_p": 0.9}, {}, {"temperature": 0.6, "min_tokens": 4}]
    prompts = prompts_of(20, longest=50)
    prompts[3] = prompts[2]  # these two share a row until they part
    return [
        running(number, prompt, max_tokens=1 + (11 * number) % 50, **settings[number % 4])
        for number, prompt in enumerate(prompts)
    ]


def same(found: dict[int, Generation], expected: dict[int, Generation]) -> None:
    assert found.keys() == expected.keys()
    for number, generation in expected.items():
        assert found[number].tokens == generation.tokens
        assert found[number].spans == generation.spans
        assert found[number].logprobs == pytest.approx(generation.logprobs, abs=1e-4)


@pytest.mark.parametrize("architecture", LEAN)
@pytest.mark.parametrize("ahead", [False, True])
def test_recorded_steps_give_the_same_tokens(model_of: ModelOf, architecture: str, ahead: bool) -> None:
    network = network_of(model_of(architecture))
    expected = run(batch_of(network, None, ahead=ahead), requests())
    recorder = Recorder()
    batch = batch_of(network, recorder, ahead=ahead)
    same(run(batch, requests()), expected)
    assert batch._fixed is not None
    shapes = batch._fixed.shapes
    assert len(recorder.tapes) == len(shapes), "each shape is recorded once"
    assert {rows for rows, _ in shapes} <= {1, 2, 4, 6}
    assert {width for _, width in shapes} <= {16, 32, 64, 128, 144}
    assert len(shapes) > 4
    again = batch_of(network, recorder, ahead=ahead)
    same(run(again, requests()), expected)


def test_weights_that_change_in_flight_are_read_where_they_lay(model_of: ModelOf) -> None:
    later = {name: tensor * 1.2 for name, tensor in network_of(model_of("qwen3")).model.state_dict().items()}

    def generated(recorder: Recorder | None) -> tuple[dict[int, Generation], Batch]:
        network = network_of(model_of("qwen3"))
        batch = batch_of(network, recorder)

        def between(step: int) -> None:
            if step == 20:
                network.assign(later)
                batch.swapped((1, 0))

        return run(batch, requests(), between=between), batch

    recorder = Recorder()
    found, batch = generated(recorder)
    expected, _ = generated(None)
    same(found, expected)
    assert {span.version for generation in found.values() for span in generation.spans} == {0, 1}
    assert batch._fixed is not None
    assert recorder.forgotten == 0, "nothing was recorded anew"
    assert len(recorder.tapes) == len(batch._fixed.shapes), "nothing was recorded anew"


def test_what_a_recording_reads_is_never_bound_anew(model_of: ModelOf) -> None:
    """Weights, keys, values and the engine's own buffers: all still alive where they lay, before and after a swap."""
    network = network_of(model_of("llama"))
    recorder = Recorder()
    batch = batch_of(network, recorder)

    def storages() -> set[int]:
        fixed = batch._fixed
        assert fixed is not None
        assert network.fused is not None
        own = [fixed._ids, fixed._positions, fixed._starts, fixed._end, fixed._column, fixed._logits]
        own += [network.fused._cos, network.fused._sin, *batch._cache._keys, *batch._cache._values]
        own += [norm._mean for layer in network.fused._layers for norm in (layer._before, layer._between)]
        own += [network.fused._norm._mean, *network.model.parameters(), *network.model.buffers()]
        return {tensor.untyped_storage().data_ptr() for tensor in own}

    run(batch, requests()[:6])
    before = storages()
    network.assign({name: tensor * 1.1 for name, tensor in network.model.state_dict().items()})
    batch.swapped((1, 0))
    run(batch, requests()[6:])
    assert storages() == before
    for tape in recorder.tapes:
        read = {tensor.untyped_storage().data_ptr() for tensor in tape.given().values()}
        assert read <= before


def test_recordings_are_given_up_with_the_memory_that_they_know(model_of: ModelOf) -> None:
    network = network_of(model_of("qwen2"))
    expected = run(batch_of(network, None), requests())
    recorder = Recorder()
    batch = batch_of(network, recorder)
    same(run(batch, requests()), expected)
    made = len(recorder.tapes)
    batch.forget()  # the engine rests: keys and values will lie elsewhere
    assert recorder.forgotten == 1
    same(run(batch, requests()), expected)
    assert len(recorder.tapes) == 2 * made
    for parameter in network.model.model.norm.parameters():
        parameter.data = parameter.data.clone()
    assert network.fused is not None
    network.fused._norm._weight = network.model.model.norm.weight
    batch.swapped((0, 0))
    assert recorder.forgotten == 2, "weights lie elsewhere"
    same(run(batch, requests()), expected)
    assert len(recorder.tapes) == 3 * made


def test_rows_move_back_where_that_halves_what_is_read(model_of: ModelOf) -> None:
    """One long text after the other beside short ones: the columns of those who left are not read for ever."""
    batch = batch_of(network_of(model_of("qwen2")), Recorder())
    assert batch._fixed is not None
    with torch.inference_mode():
        batch.join([running(0, (20,) * 70, max_tokens=2, min_tokens=2), running(1, (30,) * 5, max_tokens=40)])
        while len(batch.live) == 2:
            batch.step()
        batch.step()
    assert batch._cache.end < 16
    assert (1, 16) in batch._fixed.shapes


@pytest.mark.parametrize("architecture", LEAN)
def test_a_recorder_is_tried_at_opening(model_of: ModelOf, monkeypatch: pytest.MonkeyPatch, architecture: str) -> None:
    network = network_of(model_of(architecture))
    assert cuda_graphs.unfit(network, Way.SLOTS, deterministic=False) is None
    recorder = Recorder()
    assert try_recorder(network, recorder) is None
    assert recorder.tapes
    assert recorder.forgotten == 1

    def by_host(window: Any, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: Any) -> Any:
        column = int(window._column)  # a number that a recording keeps
        window._keys[layer][:, :, column] = keys[:, :, 0]
        window._values[layer][:, :, column] = values[:, :, 0]
        return window._keys[layer][:, :, : window._width], window._values[layer][:, :, : window._width]

    monkeypatch.setattr(FixedWindow, "update", by_host)
    assert "its logits differ by" in str(try_recorder(network, Recorder()))


@pytest.mark.parametrize(
    ("architecture", "way", "deterministic", "why"),
    [
        ("qwen2", Way.SLOTS, True, "the experiment is deterministic"),
        ("qwen2", Way.OWN_CACHE, False, "each request alone"),
        ("gemma2", Way.SLOTS, False, "its own forward"),
        ("mistral_sliding", Way.SLOTS, False, "its attention window of 9 tokens is shorter than the 144 columns"),
    ],
)
def test_what_cannot_be_recorded_has_a_reason(
    model_of: ModelOf, architecture: str, way: Way, deterministic: bool, why: str
) -> None:
    network = network_of(model_of(architecture))
    assert why in str(cuda_graphs.unfit(network, way, deterministic=deterministic))
    assert cuda_graphs.recorder_for(network, Way.SLOTS, enabled=True, deterministic=False) is None, "not on a CPU"

"""`CudaRecorder` records decode steps on a GPU as CUDA graphs; `unfit` names the models whose steps cannot be recorded.

A decode step of a small batch is some hundred short kernels. Launched one by one they cost the host more time than the
GPU; a graph launches all at once.
"""

from __future__ import annotations

from typing import Final

import structlog
import torch

from rftd.workers.engines.torch.rollout.cache import SLACK_COLUMNS
from rftd.workers.engines.torch.rollout.network import Network
from rftd.workers.engines.torch.rollout.recordings import Recorder, Step
from rftd.workers.engines.torch.rollout.trial import try_recorder
from rftd.workers.engines.torch.rollout.uncached import Way

log = structlog.get_logger(__name__)
"""Log of this module."""

_WARM_UP_RUNS: Final = 2
"""Number of runs before a capture; the first run creates library handles and workspaces, which is impossible in a
capture.
"""


class CudaRecorder:
    """Implements `Recorder` with CUDA graphs sharing one pool of memory, because they never run at once."""

    def __init__(self, device: torch.device) -> None:
        """Prepares a pool of memory and a separate stream on the device."""
        self._device = device
        """The GPU."""
        self._pool = torch.cuda.graph_pool_handle()
        """Handle of the memory pool shared by the graphs."""
        self._side_stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        """Stream on which steps are warmed up and captured."""

    def record(self, step: Step) -> Step:
        """Runs the step on a separate stream, then captures it there; the graph runs on the caller's stream."""
        caller_stream = torch.cuda.current_stream(self._device)
        self._side_stream.wait_stream(caller_stream)
        with torch.cuda.stream(self._side_stream):
            for _ in range(_WARM_UP_RUNS):
                step()
        caller_stream.wait_stream(self._side_stream)
        graph = torch.cuda.CUDAGraph()
        # thread_local: another thread may allocate meanwhile, such as the reader of new weights.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._side_stream, capture_error_mode="thread_local"):
            step()
        return graph.replay

    def forget(self) -> None:
        """Abandons the memory pool of the graphs; its memory is freed once the graphs are deleted."""
        self._pool = torch.cuda.graph_pool_handle()


def recorder_for(network: Network, way: Way, *, enabled: bool, deterministic: bool) -> Recorder | None:
    """Returns a recorder after a trial on the model; None if disabled, without a GPU, or (with a line in the log) for
    an unsuitable model.
    """
    if not enabled or network.device.type != "cuda":
        return None
    obstacle = unfit(network, way, deterministic=deterministic)
    if obstacle is None:
        recorder = CudaRecorder(network.device)
        obstacle = try_recorder(network, recorder)
        if obstacle is None:
            return recorder
    log.warning("rollout.no_cuda_graphs", model_type=network.model.config.model_type, because=obstacle)
    return None


def unfit(network: Network, way: Way, *, deterministic: bool) -> str | None:
    """Returns the reason why a model's steps cannot be recorded, or None."""
    if deterministic:
        return (
            "the experiment is deterministic, and the columns of a recorded step depend on the other running requests"
        )
    if way is not Way.SLOTS:
        return f"its tokens are computed {way.value}"
    if network.fused is None:
        return "it runs through its own forward, which may make decisions on the host that a recording cannot"
    columns = network.max_len + SLACK_COLUMNS
    window = network.fused.window
    if window is not None and window < columns:
        return f"its attention window of {window} tokens is shorter than the {columns} columns of the cache"
    return None

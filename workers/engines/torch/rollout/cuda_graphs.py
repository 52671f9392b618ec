"""CUDA graphs: recordings of decode steps on a GPU, and the reasons for which a model has none.

A decode step of a small batch is some hundred short kernels. Launched one by one they cost the host more time than the
GPU; a graph launches all of them at once.
"""

from __future__ import annotations

from typing import Final

import structlog
import torch

from rftd.workers.engines.torch.rollout.alone import Way
from rftd.workers.engines.torch.rollout.cache import SLACK_COLUMNS
from rftd.workers.engines.torch.rollout.network import Network
from rftd.workers.engines.torch.rollout.recordings import Recorder, Step
from rftd.workers.engines.torch.rollout.trial import try_recorder

log = structlog.get_logger(__name__)

_WARM_UPS: Final = 2
"""Runs before a capture: libraries make handles and workspaces at the first, which a capture cannot."""


class CudaRecorder:
    """Implements `Recorder` with CUDA graphs that share one pool of memory: they never run at once."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._beside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def record(self, step: Step) -> Step:
        """Runs the step on a stream of its own, then captures it there; the graph runs on the caller's stream."""
        present = torch.cuda.current_stream(self._device)
        self._beside.wait_stream(present)
        with torch.cuda.stream(self._beside):
            for _ in range(_WARM_UPS):
                step()
        present.wait_stream(self._beside)
        made = torch.cuda.CUDAGraph()
        # thread_local: another thread may allocate meanwhile, such as the one that reads new weights.
        with torch.cuda.graph(made, pool=self._pool, stream=self._beside, capture_error_mode="thread_local"):
            step()
        return made.replay

    def forget(self) -> None:
        """Leaves the pool of the graphs, whose memory is free once they are gone."""
        self._pool = torch.cuda.graph_pool_handle()


def recorder_for(network: Network, way: Way, *, wanted: bool, deterministic: bool) -> Recorder | None:
    """Makes CUDA graphs, tried on the model; None without a GPU, or if the model cannot have them: the log says why."""
    if not wanted or network.device.type != "cuda":
        return None
    why = unfit(network, way, deterministic=deterministic)
    if why is None:
        recorder = CudaRecorder(network.device)
        why = try_recorder(network, recorder)
        if why is None:
            return recorder
    log.warning("rollout.no_cuda_graphs", model_type=network.model.config.model_type, because=why)
    return None


def unfit(network: Network, way: Way, *, deterministic: bool) -> str | None:
    """The reason for which the steps of a model cannot be recorded, or None."""
    if deterministic:
        return "the experiment is deterministic, and the columns of a recorded step depend on who else runs"
    if way is not Way.SLOTS:
        return f"its tokens are computed {way.value}"
    if network.fused is None:
        return "it runs through a forward of its own, which may decide on the host what a recording would not"
    columns = network.max_len + SLACK_COLUMNS
    window = network.fused.window
    if window is not None and window < columns:
        return f"its attention window of {window} tokens is shorter than the {columns} columns of the cache"
    return None

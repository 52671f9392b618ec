"""The part of a specification that says what engines need: devices and their split, limits, memory, a cluster."""

from __future__ import annotations

import msgspec

from rftd.streams.log.bounds import Bytes, Finite, Index

# Defaults say what logs mean that were written before the field was there, as in `rftd.streams.spec.spec`.


class EngineNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """The share of its machine that a rollout engine takes, and how it spends it.

    Names are those of the guide, and vLLM's.
    """

    device: str = "auto"
    """`cpu`, `cuda`, or `auto`: the engine sees for itself."""
    devices: Index = 0
    """GPUs that one engine has for its own; 0: it is given none, and sees what its machine shows."""
    tensor_parallel_size: Index = 1
    pipeline_parallel_size: Index = 1
    data_parallel_size: Index = 1
    enable_expert_parallel: bool = False
    gpu_memory_utilization: Finite = 0.9
    """The share of each device's memory that weights and cache may fill together."""
    enforce_eager: bool = False
    """Nothing is compiled or recorded: slower, and sooner ready."""
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    max_num_seqs: Index = 0
    """Most requests in one pass; 0: as many as the explorer runs at once."""
    max_num_batched_tokens: Index = 0
    """Most tokens in one pass; 0: the engine's own."""
    start_timeout_s: Finite = 0.0
    """Longest start of an explorer, its engine's compiling and loading included; 0: as long as any worker's."""

    @property
    def parallel(self) -> int:
        """Processes that one engine computes in, each on a device of its own."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size


class ClusterSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The guide's `cluster.ray_address`, `ray_namespace`, `monitor.enable_ray_timeline` and `log.group_by_node`."""

    address: str = ""
    """The address of the cluster; empty: the daemon's."""
    namespace: str = ""
    """The namespace of the experiment's actors; empty: PROJECT/NAME."""
    timeline: bool = False
    """Its trace is written when its workers have ended."""
    logs_by_node: bool = False
    """Each log is in a folder that is named after the node."""


class MemoryNeed(msgspec.Struct, frozen=True, kw_only=True):
    """A thing that a worker keeps on its device."""

    what: str
    size_bytes: Bytes


class WorkerMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The memory that the workers of a stage were expected to take of one device when the experiment was accepted."""

    role: str
    stage: str
    workers: Index
    """The number of workers that share the device."""
    device: str
    device_bytes: Bytes
    needs: tuple[MemoryNeed, ...]
    """The parts of one worker's memory."""

"""The part of a specification with the needs of engines: devices and their split, limits, memory, a cluster."""

from __future__ import annotations

import msgspec

from rftd.streams.log.bounds import Bytes, Finite, Index

# Defaults give the meaning of logs written before the field existed, as in `rftd.streams.spec.spec`.


class EngineNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout engine's share of its machine, and the split of the share.

    Names are those of the guide, and vLLM's.
    """

    device: str = "auto"
    """`cpu`, `cuda`, or `auto`: detected by the engine."""
    devices: Index = 0
    """Number of GPUs exclusive to one engine; 0: none are assigned, and the engine uses the machine's visible ones."""
    tensor_parallel_size: Index = 1
    pipeline_parallel_size: Index = 1
    data_parallel_size: Index = 1
    enable_expert_parallel: bool = False
    gpu_memory_utilization: Finite = 0.9
    """Maximum share of each device's memory for weights and cache together."""
    enforce_eager: bool = False
    """True: neither compile nor record graphs; slower, and sooner ready."""
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    max_num_seqs: Index = 0
    """Maximum number of requests in one pass; 0: as many as the explorer runs at once."""
    max_num_batched_tokens: Index = 0
    """Maximum number of tokens in one pass; 0: the engine's default."""
    start_timeout_s: Finite = 0.0
    """Maximum start-up time of an explorer, with its engine's compiling and loading; 0: as for any worker."""

    @property
    def parallel(self) -> int:
        """Number of computing processes of one engine, each on a separate device."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size


class ClusterSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The guide's `cluster.ray_address`, `ray_namespace`, `monitor.enable_ray_timeline` and `log.group_by_node`."""

    address: str = ""
    """The address of the cluster; empty: the daemon's."""
    namespace: str = ""
    """The namespace of the experiment's actors; empty: PROJECT/NAME."""
    timeline: bool = False
    """True: write the cluster's trace when the workers have ended."""
    logs_by_node: bool = False
    """True: store each log in a folder named after the node."""


class MemoryNeed(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a worker's memory on its device."""

    what: str
    size_bytes: Bytes


class WorkerMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The expected memory of a stage's workers on one device, as of the experiment's acceptance."""

    role: str
    stage: str
    workers: Index
    """Number of workers sharing the device."""
    device: str
    device_bytes: Bytes
    needs: tuple[MemoryNeed, ...]
    """The parts of one worker's memory."""

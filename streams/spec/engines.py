"""Engines in a specification: their devices and memory, auxiliary models, and allowed addresses and keys."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from rftd.ops.outbound import WebAddress, check_url, names_host
from rftd.streams.log.bounds import Bytes, Finite, Index, Integer
from rftd.streams.log.marked import InputPath

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
    """Settings of Ray: the guide's `cluster.ray_address`, `ray_namespace`, `monitor.enable_ray_timeline`,
    `log.group_by_node`.
    """

    address: str = ""
    """The address of the cluster; empty: the daemon's."""
    namespace: str = ""
    """The namespace of the experiment's actors; empty: PROJECT/NAME."""
    timeline: bool = False
    """True: write the cluster's trace when the workers have ended."""
    logs_by_node: bool = False
    """True: store each log in a folder named after the node."""


MOMENTS: Final = "the optimizer's moments"
"""Name of the optimizer's state among a trainer's needs of memory."""


class MemoryNeed(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a worker's memory on its device, such as weights or cache."""

    what: str
    size_bytes: Bytes


class WorkerMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Expected memory of a stage's workers on one device, as estimated at acceptance."""

    role: str
    stage: str
    workers: Index
    """Number of workers sharing the device."""
    device: str
    device_bytes: Bytes
    needs: tuple[MemoryNeed, ...]
    """The parts of one worker's memory."""


# Defaults give the meaning of logs written before the field existed, as in `rftd.streams.spec.spec`.

SERVICE: Final = "external"
"""`AuxiliarySpec.engine` of a model served over OpenAI's API."""


class AuxiliarySpec(msgspec.Struct, frozen=True, kw_only=True):
    """A model available to workflows and rewards besides the trained one: run by the explorers, or by an external
    service.
    """

    name: str
    """Name used in records and errors."""
    engine: str = "torch"
    """Rollout engine opened by each explorer; or `external` for a service."""
    path: InputPath = ""
    """Folder of the model, for an engine; empty for a service."""
    max_model_len: Index = 0
    max_prompt_tokens: Index = 0
    max_response_tokens: Index = 0
    """Maximum length of an answer, also of a service's."""
    chat_template: str | None = None
    enable_thinking: bool | None = None
    """A variable of the chat template; None: not passed."""
    trust_remote_code: bool = False
    temperature: Finite = 1.0
    """Default for requests that set none; likewise `top_p` and `top_k`."""
    top_p: Finite = 1.0
    top_k: Integer = -1
    dtype: str = "float32"
    threads: Index = 1
    engines: Index = 1
    """Number of engines per explorer; each rollout uses the least busy one."""
    concurrency: Index = 16
    """Maximum number of concurrent requests to one engine; further requests wait."""
    engine_args: dict[str, Any] = {}
    """Arguments of the engine, or of the service (`workers.rollout.auxiliary.service_arguments`)."""
    needs: EngineNeeds = EngineNeeds()
    model_name: str = ""
    """Name of the model in requests to the service."""
    base_url: str = ""
    """The service's address, up to `/v1`; empty if a variable holds it."""
    base_url_env: str = ""
    """The environment variable with the address."""
    api_key_env: str = ""
    """The environment variable with the key; empty: the service requires none."""

    @property
    def served(self) -> bool:
        """True if an external service answers, so that no engine is opened."""
        return self.engine == SERVICE


# Defaults give the meaning of logs written before the field existed, as in `rftd.streams.spec.spec`.


class ReachSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What an experiment may access, decided at its submission and enforced by every worker."""

    restricted: bool = False
    """True for submitters other than the owner: only public addresses and granted variables are allowed."""
    addresses: tuple[str, ...] = ()
    """Hosts, as HOST or HOST:PORT, allowed although they are on this machine or its networks."""
    secrets: dict[str, tuple[str, ...]] = {}
    """Environment variables the experiment may read, each with the hosts to which its value may be sent."""

    def joined(self, other_half: ReachSpec) -> ReachSpec:
        """Returns the reach of an experiment joined from two halves."""
        return ReachSpec(
            restricted=self.restricted or other_half.restricted,
            addresses=tuple(dict.fromkeys((*self.addresses, *other_half.addresses))),
            secrets={**self.secrets, **other_half.secrets},
        )

    def check(self, url: str, *, field: str, variable: str = "") -> None:
        """Raises ConfigError if the experiment may not request this URL; `variable` is the variable containing it, if
        any.
        """
        check_url(url, field=field, public_only=self.restricted, allowed=self.hosts(variable))

    def hosts(self, variable: str = "") -> tuple[str, ...]:
        """Returns the hosts allowed at any address: `addresses`, and the hosts to which the value of `variable` may be
        sent.
        """
        return (*self.addresses, *self.secrets.get(variable, ()))

    def may_read(self, variable: str) -> bool:
        """True if the experiment may read the variable's value."""
        return not self.restricted or variable in self.secrets

    def may_send(self, variable: str, address: WebAddress) -> bool:
        """True if the variable's value may be sent to this address: one of its granted hosts, and unencrypted only to a
        host in `addresses`.

        For the owner's submissions always True.
        """
        if not self.restricted:
            return True
        granted = names_host(self.secrets.get(variable, ()), address)
        return granted and (address.scheme == "https" or names_host(self.addresses, address))


OWNERS: Final = ReachSpec()
"""Reach of submissions by the owner: unrestricted."""


class ServingSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Address of the HTTP server in explorers: an IP address and a port (0: any free one)."""

    address: str
    port: Index


SERVE_KEY: Final = "RFTD_SERVE_KEY"
"""Environment variable of explorers with the key clients have to send."""

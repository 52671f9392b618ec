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
    """Number of devices that share each layer's matrices."""
    pipeline_parallel_size: Index = 1
    """Number of devices that share the layers."""
    data_parallel_size: Index = 1
    """Number of copies of the model within one engine."""
    enable_expert_parallel: bool = False
    """Divides the experts of a mixture among devices; False: each device has all experts."""
    gpu_memory_utilization: Finite = 0.9
    """Maximum share of each device's memory for weights and cache together."""
    enforce_eager: bool = False
    """Disables compilation and CUDA graphs of the engine: slower, but ready sooner."""
    enable_prefix_caching: bool = True
    """Shares the cache of equal prompt prefixes between requests."""
    enable_chunked_prefill: bool = True
    """Computes long prompts in chunks, together with decode steps of other requests."""
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
    """Writes the cluster's trace after the workers' end."""
    logs_by_node: bool = False
    """Stores each log in a folder named after the node."""


MOMENTS: Final = "the optimizer's moments"
"""Name of the optimizer's state among a trainer's needs of memory."""


class MemoryNeed(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a worker's memory on its device, such as weights or cache."""

    what: str
    """Name of the part."""
    size_bytes: Bytes
    """Size of the part in bytes."""


class WorkerMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Expected memory of a stage's workers on one device, as estimated at acceptance."""

    role: str
    """Role of the workers."""
    stage: str
    """Name of the stage."""
    workers: Index
    """Number of workers sharing the device."""
    device: str
    """Name of the device."""
    device_bytes: Bytes
    """Memory of the device in bytes."""
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
    """Maximum length of prompt and answer together, in tokens."""
    max_prompt_tokens: Index = 0
    """Maximum length of a prompt, in tokens."""
    max_response_tokens: Index = 0
    """Maximum length of an answer, also of a service's."""
    chat_template: str | None = None
    """Chat template; None: the one of the model's tokenizer."""
    enable_thinking: bool | None = None
    """A variable of the chat template; None: not passed."""
    trust_remote_code: bool = False
    """True if the engine may run Python code from the model's folder."""
    temperature: Finite = 1.0
    """Default for requests that set none; likewise `top_p` and `top_k`."""
    top_p: Finite = 1.0
    """Default share of probability sampled from."""
    top_k: Integer = -1
    """Default number of likeliest tokens sampled from; -1: all."""
    dtype: str = "float32"
    """Number format of the weights."""
    threads: Index = 1
    """Number of threads for computing, or `ALL`."""
    engines: Index = 1
    """Number of engines per explorer; each rollout uses the least busy one."""
    concurrency: Index = 16
    """Maximum number of concurrent requests to one engine; further requests wait."""
    engine_args: dict[str, Any] = {}
    """Arguments of the engine, or of the service (`workers.rollout.auxiliary.service_arguments`)."""
    needs: EngineNeeds = EngineNeeds()
    """Devices and memory of each engine."""
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
    """True if only public addresses and granted variables are allowed, as for every submitter except the owner."""
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
    """IP address on which the server listens."""
    port: Index
    """Port on which the server listens; 0: any free one."""


SERVE_KEY: Final = "RFTD_SERVE_KEY"
"""Environment variable of explorers with the key clients have to send."""

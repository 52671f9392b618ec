"""`start`: makes vLLM's AsyncLLM from its arguments."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Final

from rftd.ops.errors import ConfigError
from rftd.workers.engines.vllm.checks import CPU_CACHE_BYTES

_BINDING: Final = "VLLM_CPU_OMP_THREADS_BIND"
"""vLLM's variable binding CPU threads to cores."""
_SHARED_NODES: Final = "VLLM_CPU_SIM_MULTI_NUMA"
"""vLLM's variable allowing workers to share a memory node."""


def start(arguments: dict[str, Any], device: str) -> tuple[Any, Any, Any]:
    """Returns AsyncLLM, its counters, and the common form of its requests. Blocks during vLLM's start."""
    # Imported here: vLLM reads the environment while it is imported, and takes seconds.
    from transformers import GenerationConfig
    from vllm import AsyncEngineArgs
    from vllm.platforms import current_platform
    from vllm.v1.engine.async_llm import AsyncLLM

    from rftd.workers.engines.vllm.counters import EngineCounters
    from rftd.workers.engines.vllm.requests import RequestForm

    installed_device = "cpu" if current_platform.is_cpu() else "cuda"
    if device not in ("auto", installed_device):
        raise ConfigError(f"the installed vLLM runs on {installed_device}, but {device} was requested")
    if installed_device == "cpu":
        # A share of the machine's memory would be taken from everything else; compiling takes minutes for nothing.
        arguments.pop("gpu_memory_utilization", None)
        arguments.setdefault("kv_cache_memory_bytes", CPU_CACHE_BYTES)
        arguments["enforce_eager"] = True
        share_cores(int(arguments.get("tensor_parallel_size", 1)))
    counters = EngineCounters()
    llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments), stat_loggers=[counters])
    config = llm.model_config.hf_text_config
    ends = [config.eos_token_id, llm.get_tokenizer().eos_token_id]
    with contextlib.suppress(OSError):  # optional in a model folder
        ends.append(GenerationConfig.from_pretrained(arguments["model"], local_files_only=True).eos_token_id)
    flat = (end for end_ids in ends for end in (end_ids if isinstance(end_ids, list | tuple) else [end_ids]))
    ends_known = frozenset(end for end in flat if isinstance(end, int))
    return llm, counters, RequestForm(config.vocab_size, arguments["max_model_len"], ends_known)


def share_cores(workers: int) -> None:
    """Lets vLLM's worker processes share a memory node's cores, if there are more workers than nodes.

    By default its CPU build assigns each worker a separate memory node. Raises ConfigError if there are fewer cores
    than workers. A value of vLLM's own variable, assigning cores to each worker, takes precedence.
    """
    from vllm.utils.cpu_resource_utils import get_allowed_cpu_list

    if workers == 1 or os.environ.get(_BINDING, "auto") != "auto":
        return
    cores = get_allowed_cpu_list()
    if len(cores) < workers:
        raise ConfigError(
            f"is {workers}, and each needs a core of its own, but vLLM may use {len(cores)}",
            field="explorer.rollout_model.tensor_parallel_size",
            fix=f"write {len(cores)} or less",
        )
    if len({core.numa_node for core in cores}) < workers:
        os.environ[_SHARED_NODES] = "1"

"""`machine_environment`: the environment variables passed on to a child process, by an allow-list.

Allowed are variables needed by programs of the machine: folders, languages, devices, numbers of threads, certificates;
no key, no password, and nothing selecting the code run by Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Final

from rftd.ops.redaction import is_plain_variable

_NAMES: Final = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TZDIR", "TMPDIR", "TEMP", "TMP"}
    | {"XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"}
    | {"LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CC", "CXX"}
    | {"SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"}
    | {"GPU_DEVICE_ORDINAL", "TOKENIZERS_PARALLELISM", "TP_SOCKET_IFNAME", "NO_COLOR"}
)
"""Names of the allowed variables."""
_FAMILIES: Final = (
    *("LC_*", "CUDA_*", "NVIDIA_*", "CUBLAS_*", "CUDNN_*", "NCCL_*", "NVSHMEM_*", "GLOO_*", "UCX_*"),
    *("HIP_*", "HSA_*", "ROCR_*", "ROCM_*", "RCCL_*", "MIOPEN_*"),
    *("OMP_*", "GOMP_*", "KMP_*", "MKL_*", "OPENBLAS_*", "BLIS_*", "NUMEXPR_*", "MALLOC_*"),
    *("TORCH_*", "TORCHINDUCTOR_*", "PYTORCH_*", "TRITON_*", "VLLM_*", "FLASHINFER_*", "HF_*", "TRANSFORMERS_*"),
)
"""Settings of devices, libraries and engines; those with a name like a secret's are not passed on."""
PROXIES: Final = tuple(
    spelled for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY") for spelled in (name, name.lower())
)
"""The owner's proxies."""


def machine_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of `environ` allowed for any local program, by name and pattern."""
    return {name: content for name, content in environ.items() if _is_machines(name)}


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    """True if a variable's name matches a pattern, with `*` for any text."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _is_machines(name: str) -> bool:
    """True for a variable that any local program may have, and that is no secret."""
    return name in _NAMES or (matches(name, _FAMILIES) and is_plain_variable(name, ""))

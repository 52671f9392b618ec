"""`machine_environment`: what a child process may know of the environment of this one, by a list of what is allowed.

It has what a program needs on its machine: places, languages, devices, numbers of threads, certificates. It has no key,
no password and nothing that chooses the code which Python runs.
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
_FAMILIES: Final = (
    *("LC_*", "CUDA_*", "NVIDIA_*", "CUBLAS_*", "CUDNN_*", "NCCL_*", "NVSHMEM_*", "GLOO_*", "UCX_*"),
    *("HIP_*", "HSA_*", "ROCR_*", "ROCM_*", "RCCL_*", "MIOPEN_*"),
    *("OMP_*", "GOMP_*", "KMP_*", "MKL_*", "OPENBLAS_*", "BLIS_*", "NUMEXPR_*", "MALLOC_*"),
    *("TORCH_*", "TORCHINDUCTOR_*", "PYTORCH_*", "TRITON_*", "VLLM_*", "FLASHINFER_*", "HF_*", "TRANSFORMERS_*"),
)
"""Settings of devices, libraries and engines; those among them whose names are like a secret's stay here."""
PROXIES: Final = tuple(
    spelled for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY") for spelled in (name, name.lower())
)
"""The owner's proxies."""


def machine_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of `environ` that any program of this machine may have."""
    return {name: value for name, value in environ.items() if _is_machines(name)}


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    """True if a variable's name is one of the patterns, in which `*` stands for anything."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _is_machines(name: str) -> bool:
    return name in _NAMES or (matches(name, _FAMILIES) and is_plain_variable(name, ""))

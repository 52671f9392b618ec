"""`Allowances`: the names that the daemon's configuration allows in submissions that are not its owner's."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Final

import msgspec

from rftd.ops.outbound import check_url, names_host, web_address
from rftd.streams.events.experiment import Grant

ROOTS: Final = "roots"
ALLOW_ENV: Final = "allow_env"
SECRETS: Final = "secrets"
ALLOW_URLS: Final = "allow_urls"
ALLOW_CODE: Final = "allow_code"
ALLOW_ARGS: Final = "allow_args"
ANY_HOST: Final = "*"
"""The host of a secret that a workflow may send wherever it likes."""

SAFE_ENV: Final = (
    # Read as a number or a word by what they tune; none names a file, an address or code.
    "TOKENIZERS_PARALLELISM",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "CUDA_LAUNCH_BLOCKING",
    "VLLM_LOGGING_LEVEL",
)
"""Variables that every submission may set."""
SAFE_ARGS: Final = (
    # Of engines of ours, which refuse every argument that they do not declare.
    *("device", "cuda_graphs"),
    *("skill", "gain", "latency_s", "latency_sigma", "latency_cap", "tokens_per_s", "hang", "silent"),
    *("step_s", "nan_at_step", "nan_steps", "ranks", "nodes", "rank_timeout_s"),
    *("timeout_s", "retries", "wait_s", "length_field"),
    *("critic_lr", "critic_lr_scheduler_type", "critic_lr_warmup_steps", "critic_lr_warmup_steps_ratio"),
    *("critic_min_lr_ratio", "critic_weight_decay", "critic_clip", "critic_grad_clip"),
    *("hang_timeout_s", "kv_cache_memory_bytes"),
)
"""Arguments of engines that every submission may set."""


class Allowances(msgspec.Struct, frozen=True, kw_only=True):
    """The allow-lists. Whatever is in none of them is refused to everybody but the owner."""

    roots: tuple[str, ...] = ()
    """Folders below which files and folders may be named."""
    allow_env: tuple[str, ...] = SAFE_ENV
    """Patterns of variables that `explorer.env_vars` may set."""
    secrets: dict[str, tuple[str, ...]] = {}
    """Variables of the workers that may be named, each with the hosts that their values may be sent to."""
    allow_urls: tuple[str, ...] = ()
    """Hosts, as HOST or HOST:PORT, that may be this machine's or its networks'."""
    allow_code: tuple[str, ...] = ()
    """Model folders whose own code may run."""
    allow_args: tuple[str, ...] = SAFE_ARGS
    """Patterns of arguments of engines, and `PLUGIN.ARGUMENT` of third parties' workflows and rewards."""

    def path(self, path: str) -> Grant | None:
        """The grant for a file or a folder; None if it is not allowed. Blocks."""
        real = confined(path, self.roots)
        return None if real is None else Grant(ROOTS, real)

    def code(self, folder: str) -> Grant | None:
        """The grant for a model folder whose code runs. Blocks."""
        real = confined(folder, self.allow_code)
        return None if real is None else Grant(ALLOW_CODE, real)

    def variable(self, name: str) -> Grant | None:
        """The grant for a variable that a submission sets."""
        return Grant(ALLOW_ENV, name) if _matches(name, self.allow_env) else None

    def argument(self, name: str) -> Grant | None:
        """The grant for an argument of an engine or a third party's part."""
        return Grant(ALLOW_ARGS, name) if _matches(name, self.allow_args) else None

    def secret(self, name: str, url: str | None) -> Grant | None:
        """The grant for a variable whose value goes to a URL; None as URL: to where another variable says."""
        hosts = self.secrets.get(name, ())
        if not hosts:
            return None
        if url is None or ANY_HOST in hosts:
            return Grant(SECRETS, name)
        return Grant(SECRETS, name) if names_host(hosts, web_address(url, field=name)) else None

    def anywhere(self, name: str) -> Grant | None:
        """The grant for a variable whose value a workflow is given, which may send it anywhere."""
        return Grant(SECRETS, name) if ANY_HOST in self.secrets.get(name, ()) else None

    def url(self, text: str, *, field: str) -> Grant | None:
        """The grant for a private address. Raises ConfigError for no address, PrivateAddressError if it is refused."""
        check_url(text, field=field, public_only=True, allowed=self.allow_urls)
        address = web_address(text, field=field)
        return Grant(ALLOW_URLS, f"{address.host}:{address.port}") if names_host(self.allow_urls, address) else None

    def withdrawn(self, grants: Iterable[Grant]) -> Iterator[Grant]:
        """The grants that the configuration allows no more, or whose paths lead elsewhere by now. Blocks."""
        for grant in grants:
            if not self._holds(grant):
                yield grant

    def _holds(self, grant: Grant) -> bool:
        match grant.kind:
            case "roots":
                return confined(grant.value, self.roots) == grant.value
            case "allow_code":
                return confined(grant.value, self.allow_code) == grant.value
            case "allow_env":
                return _matches(grant.value, self.allow_env)
            case "allow_args":
                return _matches(grant.value, self.allow_args)
            case "secrets":
                return grant.value in self.secrets
            case "allow_urls":
                host = grant.value.rpartition(":")[0]
                return grant.value in self.allow_urls or host in self.allow_urls
            case _:  # of a later release: nobody here knows what it allowed
                return False

    def lists(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """The lines of the configuration by their names, each with what it allows; secrets with their hosts."""
        for line, names in msgspec.structs.asdict(self).items():
            if isinstance(names, dict):
                names = tuple(f"{name} for {', '.join(hosts)}" for name, hosts in names.items())
            yield line, names

    def faults(self) -> Iterator[tuple[str, str]]:
        """The folders that allow nothing, for they are links, lie behind one or are none, with their lines. Blocks."""
        for line, folders in ((ROOTS, self.roots), (ALLOW_CODE, self.allow_code)):
            yield from ((line, folder) for folder in folders if folder not in real_roots((folder,)))


NOTHING_MORE: Final = Allowances()
"""The allow-lists of a daemon whose configuration says nothing."""


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


_WILDCARD: Final = re.compile(r"[*?[]")
ENTRIES: Final = 20_000
"""The most entries of a folder that are looked at; one with more is taken for one that leads out."""


def confined(path: str, roots: Sequence[str]) -> str | None:
    """The real path, if it and all that it holds lie below a root and are plain files and folders; else None.

    A path that does not exist is taken for what it would be. Blocks.
    """
    if not path.startswith("/") or "\0" in path:
        return None
    real = os.path.realpath(path)
    if not _below(real, roots):
        return None
    # A link within a folder leads out of it just as well as the folder's own name, and so does one that a pattern of
    # files meets on its way.
    for number, entry in enumerate(_entries(_above_pattern(real))):
        if number >= ENTRIES or not _below(os.path.realpath(entry), roots) or not _is_plain(entry):
            return None
    return real


def real_roots(roots: Sequence[str]) -> tuple[str, ...]:
    """The roots as they are now, without those that are no folders or are links."""
    return tuple(root for root in roots if os.path.realpath(root) == os.path.abspath(root) and os.path.isdir(root))


def _below(real: str, roots: Sequence[str]) -> bool:
    return any(os.path.commonpath((root, real)) == root for root in real_roots(roots))


def _entries(real: str) -> Iterator[str]:
    """The path itself and everything in it; nothing for what is not there."""
    if not os.path.lexists(real):
        return
    yield real
    for folder, folders, files in os.walk(real):
        for name in (*folders, *files):
            yield os.path.join(folder, name)


def _above_pattern(real: str) -> str:
    """The folder above the first wildcard of a pattern of files; any other path as it is."""
    wildcard = _WILDCARD.search(real)
    if wildcard is None or os.path.lexists(real):
        return real
    return os.path.dirname(real[: wildcard.start()] + "_")


def _is_plain(entry: str) -> bool:
    """True of a regular file, a folder, and a link to one; a pipe would be waited for, and a device never ends."""
    try:
        mode = os.stat(entry).st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)

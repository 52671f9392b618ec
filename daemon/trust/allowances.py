"""`Allowances`: names allowed by the daemon's configuration in submissions of anybody but the owner."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import stat
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Final

import msgspec

from rftd.ops.outbound import check_url, names_host, web_address
from rftd.streams.events.experiment import Grant

ROOTS: Final = "roots"
"""Name of the list of folders below which files may be named."""
ALLOW_ENV: Final = "allow_env"
"""Name of the list of environment variables that may be read."""
SECRETS: Final = "secrets"
"""Name of the list of secret variables, each with its hosts."""
ALLOW_URLS: Final = "allow_urls"
"""Name of the list of addresses that may be reached besides public ones."""
ALLOW_CODE: Final = "allow_code"
"""Name of the list of model folders and class paths of workflows whose code may run."""
ALLOW_ARGS: Final = "allow_args"
"""Name of the list of arguments that may be set: of engines, and of third parties' workflows and rewards."""
ALLOW_COMMANDS: Final = "allow_commands"
"""Name of the list of commands that agents and environments may run."""
ALLOW_SOURCES: Final = "allow_sources"
"""Name of the list of SHA-256 digests of Python files whose rewards others may use, in a sandbox."""
ANY_HOST: Final = "*"
"""Host of a secret that a workflow may send to any address."""

SAFE_ENV: Final = (
    # Read as a number or a word by the library; none names a file, an address or code.
    "TOKENIZERS_PARALLELISM",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "CUDA_LAUNCH_BLOCKING",
    "VLLM_LOGGING_LEVEL",
)
"""Variables allowed in every submission."""
SAFE_ARGS: Final = (
    # Arguments of built-in engines, which refuse every undeclared argument.
    *("device", "cuda_graphs"),
    *("skill", "gain", "latency_s", "latency_sigma", "latency_cap", "tokens_per_s", "hang", "silent"),
    *("step_s", "nan_at_step", "nan_steps", "ranks", "nodes", "rank_timeout_s"),
    *("timeout_s", "retries", "wait_s", "length_field"),
    *("critic_lr", "critic_lr_scheduler_type", "critic_lr_warmup_steps", "critic_lr_warmup_steps_ratio"),
    *("critic_min_lr_ratio", "critic_weight_decay", "critic_clip", "critic_grad_clip"),
    *("hang_timeout_s", "kv_cache_memory_bytes"),
)
"""Arguments of engines allowed in every submission."""


class Allowances(msgspec.Struct, frozen=True, kw_only=True):
    """The allow-lists. Names in none of the lists are refused to everybody but the owner."""

    roots: tuple[str, ...] = ()
    """Folders allowed for files and folders named in a submission."""
    allow_env: tuple[str, ...] = SAFE_ENV
    """Patterns of variables allowed in `explorer.env_vars`."""
    secrets: dict[str, tuple[str, ...]] = {}
    """Workers' variables allowed in submissions, each with the hosts allowed to receive the value."""
    allow_urls: tuple[str, ...] = ()
    """Hosts, as HOST or HOST:PORT, allowed although private to the machine or its networks."""
    allow_code: tuple[str, ...] = ()
    """Model folders whose code may run, and class paths of workflows, such as `package.flows.*`."""
    allow_args: tuple[str, ...] = SAFE_ARGS
    """Patterns of engine arguments, and `PLUGIN.ARGUMENT` of third-party workflows and rewards."""

    allow_commands: tuple[str, ...] = ()
    """Patterns of the commands of agents and environments, as one line quoted like a shell's."""
    allow_sources: tuple[str, ...] = ()
    """Patterns of the SHA-256 digests of rewards' source texts, each run in a sandbox."""

    def path(self, path: str) -> Grant | None:
        """Returns the grant for a file or a folder; None if not allowed. Blocks."""
        real = confined(path, self.roots)
        return None if real is None else Grant(ROOTS, real)

    def code(self, folder: str) -> Grant | None:
        """Returns the grant for a model folder with code to run; None if not allowed. Blocks."""
        real = confined(folder, self._code_folders)
        return None if real is None else Grant(ALLOW_CODE, real)

    def class_of_package(self, path: str) -> Grant | None:
        """Returns the grant for the class path of a workflow; None if not allowed."""
        return Grant(ALLOW_CODE, path) if _matches(path, self.class_patterns) else None

    @property
    def class_patterns(self) -> tuple[str, ...]:
        """The class paths in `allow_code`, as patterns; its other entries are folders."""
        return tuple(line for line in self.allow_code if is_class_pattern(line))

    def variable(self, name: str) -> Grant | None:
        """Returns the grant for a variable set by a submission; None if not allowed."""
        return Grant(ALLOW_ENV, name) if _matches(name, self.allow_env) else None

    def argument(self, name: str) -> Grant | None:
        """Returns the grant for an argument of an engine or a third-party part; None if not allowed."""
        return Grant(ALLOW_ARGS, name) if _matches(name, self.allow_args) else None

    def command(self, words: Sequence[str]) -> Grant | None:
        """Returns the grant for the command of an agent; None if not allowed."""
        return self.command_line(shlex.join(words))

    def command_line(self, line: str) -> Grant | None:
        """Returns the grant for a command line, quoted like a shell's; None if not allowed."""
        return Grant(ALLOW_COMMANDS, line) if _matches(line, self.allow_commands) else None

    def source(self, text: str) -> Grant | None:
        """Returns the grant for a source text, by its digest; None if not allowed."""
        digest = hashlib.sha256(text.encode()).hexdigest()
        return Grant(ALLOW_SOURCES, digest) if _matches(digest, self.allow_sources) else None

    def secret(self, name: str, url: str | None) -> Grant | None:
        """Returns the grant for a variable whose value is sent to `url`; None as URL: the address is in another
        variable.
        """
        hosts = self.secrets.get(name, ())
        if not hosts:
            return None
        if url is None or ANY_HOST in hosts:
            return Grant(SECRETS, name)
        return Grant(SECRETS, name) if names_host(hosts, web_address(url, field=name)) else None

    def anywhere(self, name: str) -> Grant | None:
        """Returns the grant for a variable whose value is passed to a workflow, which may send the value to any host;
        None if not allowed.
        """
        return Grant(SECRETS, name) if ANY_HOST in self.secrets.get(name, ()) else None

    def url(self, text: str, *, field: str) -> Grant | None:
        """Returns the grant for a private address; None for a public address, which needs no grant.

        Raises ConfigError for an invalid address, PrivateAddressError for a private address that is not allowed.
        """
        check_url(text, field=field, public_only=True, allowed=self.allow_urls)
        address = web_address(text, field=field)
        return Grant(ALLOW_URLS, f"{address.host}:{address.port}") if names_host(self.allow_urls, address) else None

    def withdrawn(self, grants: Iterable[Grant]) -> Iterator[Grant]:
        """Yields grants no longer allowed by the configuration, or whose paths lead elsewhere by now. Blocks."""
        for grant in grants:
            if not self._still_allows(grant):
                yield grant

    @property
    def _code_folders(self) -> tuple[str, ...]:
        return tuple(line for line in self.allow_code if not is_class_pattern(line))

    def _still_allows(self, grant: Grant) -> bool:
        match grant.kind:
            case "roots":
                return confined(grant.value, self.roots) == grant.value
            case "allow_code":
                if is_class_pattern(grant.value):
                    return _matches(grant.value, self.class_patterns)
                return confined(grant.value, self._code_folders) == grant.value
            case "allow_env":
                return _matches(grant.value, self.allow_env)
            case "allow_args":
                return _matches(grant.value, self.allow_args)
            case "allow_commands":
                return _matches(grant.value, self.allow_commands)
            case "allow_sources":
                return _matches(grant.value, self.allow_sources)
            case "secrets":
                return grant.value in self.secrets
            case "allow_urls":
                host = grant.value.rpartition(":")[0]
                return grant.value in self.allow_urls or host in self.allow_urls
            case _:  # the kind of a later release, unknown here
                return False

    def lists(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yields the lines of the configuration by name, each with the allowed names; secrets with their hosts."""
        for line, names in msgspec.structs.asdict(self).items():
            if isinstance(names, dict):
                names = tuple(f"{name} for {', '.join(hosts)}" for name, hosts in names.items())
            yield line, names

    def faults(self) -> Iterator[tuple[str, str]]:
        """Yields ineffective folders (links, folders behind a link, missing folders), with the configuration's line.
        Blocks.
        """
        for line, folders in ((ROOTS, self.roots), (ALLOW_CODE, self._code_folders)):
            yield from ((line, folder) for folder in folders if folder not in real_roots((folder,)))


NOTHING_MORE: Final = Allowances()
"""The allow-lists of a daemon without a configuration."""


def is_class_pattern(line: str) -> bool:
    """True for a class path or a pattern of class paths in `allow_code`; a folder has a slash."""
    return "." in line and _CLASS_PATTERN.fullmatch(line) is not None


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


_CLASS_PATTERN: Final = re.compile(r"[A-Za-z_*?][\w.*?]*")
"""Form of a class path with wildcards."""
_WILDCARD: Final = re.compile(r"[*?[]")
"""A wildcard of `fnmatch`."""
ENTRIES: Final = 20_000
"""Maximum number of inspected entries of a folder; a larger folder is treated as leading out of the root."""


def confined(path: str, roots: Sequence[str]) -> str | None:
    """Returns the real path if the path with its whole content lies below a root, as plain files and folders; otherwise
    None.

    A path that does not exist is judged as if it existed. Blocks.
    """
    if not path.startswith("/") or "\0" in path:
        return None
    real = os.path.realpath(path)
    if not _below(real, roots):
        return None
    # A link within a folder leads out of the root like a link in the path itself, and so does a link met by a file
    # pattern.
    for number, inner_path in enumerate(_inner_paths(_above_pattern(real))):
        if number >= ENTRIES or not _below(os.path.realpath(inner_path), roots) or not _is_plain(inner_path):
            return None
    return real


def real_roots(roots: Sequence[str]) -> tuple[str, ...]:
    """Returns the roots that are existing folders at their real paths; roots that are or contain links are left out."""
    return tuple(root for root in roots if os.path.realpath(root) == os.path.abspath(root) and os.path.isdir(root))


def _below(real: str, roots: Sequence[str]) -> bool:
    return any(os.path.commonpath((root, real)) == root for root in real_roots(roots))


def _inner_paths(real: str) -> Iterator[str]:
    """Yields the path and everything below; nothing for a missing path."""
    if not os.path.lexists(real):
        return
    yield real
    for folder, folders, files in os.walk(real):
        for name in (*folders, *files):
            yield os.path.join(folder, name)


def _above_pattern(real: str) -> str:
    """Returns the folder above the first wildcard of a file pattern; any other path unchanged."""
    wildcard = _WILDCARD.search(real)
    if wildcard is None or os.path.lexists(real):
        return real
    return os.path.dirname(real[: wildcard.start()] + "_")


def _is_plain(path: str) -> bool:
    """True for a regular file, a folder, and a link to either; a pipe would block, and a device never ends.

    Also true for a file deleted since the folder was read, as of a run saving a checkpoint beside.
    """
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return not os.path.lexists(path)  # a link to nothing is refused
    except OSError:
        return False
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)

"""`pull` fetches the models and datasets of the Hugging Face hub that are missing in a daemon's cache."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rftd.daemon.cli.output.quantity import size
from rftd.daemon.config.field_path import show
from rftd.daemon.http.views.hub import HubFolder, hub_folder
from rftd.daemon.run.supervisor.hub_cache import HubCache, HubName, check_whole, hub_names, read_files, unread_files
from rftd.ops.errors import DataError, OutputError, RftdError, UnreachableError, UsageError
from rftd.ops.extras import DATA, not_installed
from rftd.ops.hub_id import MODEL

if TYPE_CHECKING:
    from huggingface_hub import DryRunFileInfo

_PACKAGE: Final = "huggingface_hub"
"""Package of the hub's Python client."""
_DISK_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS)
"""Error numbers of a disk that cannot be written to."""


def pull(config: dict[str, Any], daemons: HubFolder, tell: Callable[[str], None], *, bars: bool) -> None:
    """Fetches the configuration's models and datasets missing in the daemon's cache; `tell` receives a line for each
    file.

    With `bars`, progress bars are shown on standard error.

    Raises UsageError if the cache is not on this machine, NotInstalledError, DataError for a name unknown to the hub,
    UnreachableError if the hub does not answer, and OutputError for lack of space.
    """
    names = list({(name.id, name.kind): name for name in hub_names(config)}.values())
    if not names:
        tell("nothing to fetch: the file names nothing on the Hugging Face hub")
        return
    cache = HubCache(_daemon_cache(daemons))
    if lacking := [name for name in names if not _is_complete(cache, name)]:
        if find_spec(_PACKAGE) is None:
            raise not_installed(DATA, "rftd submit --pull", [_PACKAGE])
        for name in lacking:
            with _translated_errors(name):
                _fetch(name, cache.root, tell, bars=bars)


def _daemon_cache(daemons: HubFolder) -> Path:
    """Returns the daemon's cache folder, created if the daemon has none. Raises UsageError if it is on another machine,
    and OutputError if it cannot be created.
    """
    folder = Path(daemons.folder)
    if daemons.inode is None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(
                f"the daemon's cache cannot be made: {error.strerror}",
                where=daemons.folder,
                fix="run the command as the daemon's user",
            ) from None
    elif hub_folder(daemons.folder).inode != daemons.inode:
        raise UsageError(
            f"the daemon's cache {daemons.folder} is not on this machine",
            fix="run `rftd submit --pull`, or `hf download`, on the daemon's machine",
        )
    return folder


def _is_complete(cache: HubCache, name: HubName) -> bool:
    """True if the cache has every file of the model or dataset that rftd reads."""
    snapshot = cache.snapshot(name.id, name.kind)
    if snapshot is None:
        return False
    try:
        check_whole(snapshot, name.kind)
    except DataError:
        return False
    return all((snapshot / path).exists() for path in read_files(snapshot, name.kind))


def _fetch(name: HubName, root: Path, tell: Callable[[str], None], *, bars: bool) -> None:
    """Fetches the files of a model or dataset one by one, and finally points its revision in the cache to them."""
    from huggingface_hub import HfApi, hf_hub_download, snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars, enable_progress_bars

    disable_progress_bars()  # of the listings: their bars would flicker beside the lines
    whole: dict[str, Any] = {"repo_type": name.kind, "cache_dir": root, "ignore_patterns": unread_files(name.kind)}
    commit = HfApi().repo_info(name.id.repository, repo_type=name.kind, revision=name.id.revision).sha
    files = snapshot_download(name.id.repository, revision=commit, dry_run=True, **whole)
    _check_weights(name, files)
    missing_files = sorted((file for file in files if file.will_download), key=lambda file: file.filename)
    total_bytes = sum(file.file_size for file in missing_files)
    _check_room(root, total_bytes)
    subject = f"{name.kind} {name.id.repository}"
    tell(f"fetching {subject}: {len(missing_files)} files, {size(total_bytes)}, into {root}")
    if bars:
        enable_progress_bars()
    fetched_bytes = 0
    for number, file in enumerate(missing_files, 1):
        hf_hub_download(name.id.repository, file.filename, repo_type=name.kind, revision=commit, cache_dir=root)
        fetched_bytes += file.file_size
        tell(
            f"fetching {subject}: {number} of {len(missing_files)} files, {size(fetched_bytes)} of {size(total_bytes)}"
            f" ({file.filename})"
        )
    disable_progress_bars()
    snapshot_download(name.id.repository, revision=name.id.revision, **whole)
    tell(f"fetched {subject} at {commit}")


def _check_weights(name: HubName, files: Sequence[DryRunFileInfo]) -> None:
    """Raises DataError for a model without weights in a supported format."""
    if name.kind == MODEL and not any(file.filename.endswith(".safetensors") for file in files):
        raise DataError(
            f"the model {name.id.repository} has no weights in safetensors, and others are not read; nothing was"
            " fetched",
            fix="name another model or revision, or convert it with save_pretrained",
        )


def _check_room(root: Path, wanted_bytes: int) -> None:
    """Raises OutputError if the disk of `root` has less than `wanted_bytes` free."""
    free_bytes = shutil.disk_usage(root).free
    if wanted_bytes > free_bytes:
        raise OutputError(
            f"{size(wanted_bytes)} are to be fetched, and {size(free_bytes)} are free; nothing was fetched",
            where=str(root),
            fix="free some space, or let HF_HUB_CACHE of the daemon and of this command name a larger disk",
        )


@contextmanager
def _translated_errors(name: HubName) -> Iterator[None]:
    """Translates errors of the hub and of the disk into rftd's."""
    from httpx import HTTPError
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    subject = f"{name.kind} {name.id.repository}"
    field = show(name.field)
    try:
        yield
    except RftdError as error:
        error.field = field
        raise
    except GatedRepoError:
        fix = "accept its terms on its page there, and sign in: hf auth login"
        raise DataError(
            f"the hub gives the {subject} only to users who accepted its terms", field=field, fix=fix
        ) from None
    except RepositoryNotFoundError:
        fix = "correct the name; if it is a private one, sign in: hf auth login"
        raise DataError(f"the hub has no {subject}", field=field, fix=fix) from None
    except RevisionNotFoundError:
        fix = f"name another revision, or none for the newest: {name.id.repository}"
        raise DataError(f"the {subject} has no revision {name.id.revision!r}", field=field, fix=fix) from None
    except (HTTPError, OSError) as error:
        if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
            raise OutputError(
                f"the {subject} cannot be written: {error.strerror}",
                where=str(error.filename or ""),
                fix="free some space, or run the command as the daemon's user; what was fetched stays",
            ) from None
        cause = str(error).strip().partition("\n")[0]
        raise UnreachableError(
            f"the {subject} cannot be fetched: {cause or type(error).__name__}",
            field=field,
            fix="repeat the command, which continues where it stopped; or set HF_ENDPOINT to a mirror of the hub",
        ) from None

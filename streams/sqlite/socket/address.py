"""The address of the log's socket, in a folder closed to other users."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final

from rftd.ops.errors import ConflictError, UsageError
from rftd.ops.own_folder import make_own_folder

PATH_SIZE_BYTES: Final = 100
"""Maximum length of a Unix socket's path in bytes: kernels allow 104 (macOS) to 108 (Linux) with the final zero."""


def check_path(path: Path) -> None:
    """Raises UsageError for a path too long for a socket."""
    size = len(os.fsencode(path))
    if size > PATH_SIZE_BYTES:
        raise UsageError(
            f"the socket's path has {size} bytes; the kernel allows about {PATH_SIZE_BYTES}",
            where=str(path),
            fix="set XDG_RUNTIME_DIR, or else TMPDIR, in which it lies, to a shorter folder",
        )


def listen(path: Path) -> socket.socket:
    """Opens a listening socket at `path`, closed to other users; a dead socket at the path is removed.

    Raises ConflictError if another process listens there, or if another user may enter the folder: that user could put
    a foreign socket at the path, and workers would append to it.
    """
    check_path(path)
    make_own_folder(path.parent)
    # The file outlives its process: only a connection shows if anybody listens, and `bind` refuses any existing file.
    if path.is_socket():
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1.0)
            try:
                probe.connect(os.fspath(path))
            except OSError:
                path.unlink()
            else:
                raise ConflictError(
                    "another process serves a log at this socket",
                    where=str(path),
                    fix="stop it, or choose another path",
                )
    listening = socket.socket(socket.AF_UNIX)
    mask = os.umask(0o177)  # mode 0600 from the first moment on
    try:
        listening.bind(os.fspath(path))
    except BaseException:
        listening.close()
        raise
    finally:
        os.umask(mask)
    listening.setblocking(False)
    listening.listen(128)
    return listening

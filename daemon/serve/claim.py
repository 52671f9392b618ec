"""`Claim`: exclusive use of one daemon's folder and port, taken before slow imports."""

from __future__ import annotations

from rftd.daemon.serve.data_folder import DataFolder
from rftd.ops.bound_socket import bind
from rftd.ops.durable import make_durable_folder
from rftd.streams.sqlite.lock_file import LockFile, refuse_network_file_system
from rftd.streams.sqlite.socket.address import check_path


class Claim:
    """Exclusive use of a folder and a port until `release` or the end of the process.

    The imports of this module take a tenth of a second, a daemon's two seconds: on a busy machine a daemon unable to
    run would otherwise need half a minute to report the reason.
    """

    def __init__(self, folder: DataFolder, host: str, port: int, *, embedded: bool) -> None:
        """Prepares the folder; `embedded`: the log is stored in it. Port 0 is a free one. Blocks.

        Raises ConflictError if the folder is held by another daemon, the port is in use, or an import into the folder
        is unfinished, and for an embedded log on a network file system; UsageError if the socket's path is too long.
        """
        if embedded:
            check_path(folder.socket)
        self._folder = folder.root
        self._made = not folder.root.exists()
        folder.prepare()
        locked = folder.log if embedded else folder.root
        make_durable_folder(locked)
        if embedded:
            refuse_network_file_system(locked)
        self.lock = LockFile(locked)
        """Lock of the folder; an embedded log opened under it releases it when closed."""
        try:
            self.bound = bind(host, port)
            """Bound socket, not listening yet."""
        except BaseException:
            self.lock.release()
            raise

    def release(self) -> None:
        """Releases folder and port, and deletes a folder newly created for a daemon that did not start. Idempotent."""
        self.bound.close()
        if self._made:
            self._made = False
            self._delete_unused()
        self.lock.release()

    def _delete_unused(self) -> None:
        # While the lock is held, no other process can have begun to use the folder.
        contents = sorted(self._folder.rglob("*"), reverse=True)
        if all(path.is_dir() or path.suffix == ".lock" for path in contents):
            for path in contents:
                path.rmdir() if path.is_dir() else path.unlink()
            self._folder.rmdir()

"""`Claim`: the folder and the port of one daemon, taken before anything is imported that takes long."""

from __future__ import annotations

from rftd.daemon.serve.data_folder import DataFolder
from rftd.ops.bound_socket import bind
from rftd.ops.durable import make_durable_folder
from rftd.streams.sqlite.lock_file import LockFile, refuse_network_file_system
from rftd.streams.sqlite.socket.address import check_path


class Claim:
    """A folder and a port that are one daemon's alone until `release` or the end of the process.

    What this module imports costs a tenth of a second, and a daemon two: on a busy machine a daemon that cannot run
    would otherwise need half a minute to say so.
    """

    def __init__(self, folder: DataFolder, host: str, port: int, *, embedded: bool) -> None:
        """Prepares the folder; `embedded` says that the log is in it. Port 0 is a free one. Blocks.

        Raises ConflictError if another daemon holds the folder or somebody the port, if an import into it has not
        ended, and for an embedded log on a network file system; UsageError if its socket's path is too long.
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
        """The lock, which an embedded log releases when it is closed."""
        try:
            self.bound = bind(host, port)
            """The socket on which nobody listens yet."""
        except BaseException:
            self.lock.release()
            raise

    def release(self) -> None:
        """Lets another daemon have folder and port; idempotent.

        A folder that was made for a daemon which then refused its options is taken away again.
        """
        self.bound.close()
        if self._made:
            self._made = False
            self._take_away()
        self.lock.release()

    def _take_away(self) -> None:
        # While the lock is held: nobody else has begun to use what is here.
        contents = sorted(self._folder.rglob("*"), reverse=True)
        if all(path.is_dir() or path.suffix == ".lock" for path in contents):
            for path in contents:
                path.rmdir() if path.is_dir() else path.unlink()
            self._folder.rmdir()

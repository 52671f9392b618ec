"""`scan_chain`: an oracle for what the embedded log's file holds, from the first record to the last."""

from __future__ import annotations

import sys
from pathlib import Path

import apsw

from rftd.ops.errors import LogCorruptError
from rftd.streams.sqlite import schema
from rftd.streams.sqlite.check import Scan, verify_newest, wrong_ids
from rftd.streams.sqlite.errors import translate


def scan_chain(folder: Path) -> Scan:
    """The records of a log at rest: checksums, hash chain, remembered heads, index of ids and structure are compared.

    Raises LogCorruptError or LogLossError with the first bad position.
    """
    path = folder / schema.FILE_NAME
    try:
        connection = schema.connect_reader(path)
    except (apsw.Error, TypeError, ValueError) as error:
        raise translate(error, str(path), reading=True) from error
    try:
        seen = verify_newest(connection, path, sys.maxsize)
    finally:
        connection.close(True)
    for wrong in wrong_ids(folder):
        raise LogCorruptError(wrong, where=str(path))
    return seen

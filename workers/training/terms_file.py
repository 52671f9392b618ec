"""The file with the terms of a step's objective at each token.

The file is a cache: an answer of the log and the trainer, computed again at any time. A header is followed by the
columns as float32, so that one experience is read without the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

import msgspec
import numpy as np
from numpy.typing import NDArray

from rftd.ops import limits
from rftd.ops.decoding import UNREADABLE, msgpack_decoder
from rftd.ops.errors import DataError

_MAGIC: Final = b"rftd step terms 1\n"
"""First bytes of a file, with the number of its form."""
_FLOAT: Final = np.dtype("<f4")
"""Type of a stored number, on every machine."""


class StoredColumns(msgspec.Struct, frozen=True):
    """Whereabouts of an experience's columns in a file."""

    start: int
    """Index of the first number behind the header."""
    tokens: int
    """Number of response tokens, the length of each column."""
    columns: tuple[str, ...]
    """Names of the columns, in the order of the file."""


class TermsHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The header of a file: the step, and the whereabouts of each experience's columns."""

    step: int
    """Number of the step."""
    from_version: int
    """Weight version loaded before the replay's first step; 0 is the base model."""
    equal: bool
    """True if the replay reproduced the recorded weights of the step."""
    notes: tuple[str, ...]
    """Reasons for missing or differing numbers, for people."""
    experiences: dict[str, StoredColumns]
    """Whereabouts of each experience's columns by the experience's id; experiences trained as another group's are
    missing.
    """


class StepTerms(NamedTuple):
    """The terms of a step: columns of each experience, with remarks."""

    step: int
    """Number of the step."""
    from_version: int
    """Weight version loaded before the replay's first step."""
    equal: bool
    """True if the replay reproduced the recorded weights of the step."""
    notes: tuple[str, ...]
    """Reasons for missing or differing numbers."""
    experiences: Mapping[str, Mapping[str, NDArray[np.float32]]]
    """Columns by id of the experience, by name  # [R] each."""


class ReadTerms(NamedTuple):
    """The header of a file, with the columns of one experience."""

    header: TermsHeader
    """Header of the file."""
    columns: dict[str, NDArray[np.float32]]
    """Columns by name  # [R] each, NaN for tokens not trained; empty for an experience without any."""


def write_terms(path: Path, terms: StepTerms) -> None:
    """Writes the terms of a step into a file, whole or not at all. Raises DataError for too many tokens. Blocks."""
    stored: dict[str, StoredColumns] = {}
    arrays: list[NDArray[np.float32]] = []
    start = 0
    for id, columns in terms.experiences.items():
        names = tuple(columns)
        tokens = len(columns[names[0]]) if names else 0
        stored[id] = StoredColumns(start, tokens, names)
        arrays += columns.values()
        start += tokens * len(names)
    if start * _FLOAT.itemsize > limits.STEP_TERMS_SIZE_BYTES:
        raise DataError(f"the step's terms are {start} numbers, more than {limits.STEP_TERMS_SIZE_BYTES} bytes")
    header = msgspec.msgpack.encode(
        TermsHeader(
            step=terms.step,
            from_version=terms.from_version,
            equal=terms.equal,
            notes=terms.notes,
            experiences=stored,
        )
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(_MAGIC + len(header).to_bytes(8, "little") + header)
        for array in arrays:
            file.write(array.astype(_FLOAT).tobytes())
    temporary.replace(path)


def read_terms(path: Path, experience: UUID) -> ReadTerms | None:
    """Returns the header and the columns of an experience; None without a whole file. Blocks."""
    try:
        with path.open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                return None
            length = int.from_bytes(file.read(8), "little")
            header = msgpack_decoder(TermsHeader).decode(file.read(length))
            stored = header.experiences.get(str(experience))
            if stored is None or not stored.columns:
                return ReadTerms(header, {})
            file.seek(stored.start * _FLOAT.itemsize, 1)
            size = stored.tokens * len(stored.columns)
            content = file.read(size * _FLOAT.itemsize)
            numbers = np.frombuffer(content, _FLOAT).reshape(len(stored.columns), stored.tokens)
    except (OSError, ValueError, *UNREADABLE):
        return None
    return ReadTerms(header, dict(zip(stored.columns, numbers, strict=True)))

"""`TaskPipelineSpec`: operators on the rows of a taskset before the experiment, and the record of the result."""

from __future__ import annotations

import hashlib

import msgspec

from rftd.streams.log.bounds import Finite, Index, Integer
from rftd.streams.spec.stage_parts import OperatorSpec


class RowsRead(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One input of a task pipeline as read once."""

    digest: str
    """sha256 (hex) of the bytes."""
    rows: Index


class OperatorRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One operator of a task pipeline as run once."""

    name: str
    digest: str
    """sha256 (hex) of name, arguments, package and source."""
    rows: Index
    """Number of rows left by the operator."""
    figures: dict[str, Finite] = {}


class TasksMade(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Lineage of a taskset made by a task pipeline: recorded with the experiment, and never computed again."""

    settings: str
    """Digest of the pipeline's settings (`settings_digest`)."""
    inputs: tuple[RowsRead, ...]
    operators: tuple[OperatorRun, ...]
    rows: Index
    """Number of rows of the result."""


class JuicerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Address of a running Data-Juicer service, or the settings to start one."""

    server_url: str = ""
    auto_start: bool = False
    port: Index = 0
    """Port of a started service; 0: any."""
    python: str = ""
    """Python with Data-Juicer for a started service; empty: the worker's own."""
    release: str = ""
    """Required release of Data-Juicer; empty: any, but the same in all answers."""


class TaskPipelineSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Operators on the rows of inputs, and the order of the result."""

    inputs: tuple[str, ...]
    """Files, patterns or folders of rows; not read by workers."""
    operators: tuple[OperatorSpec, ...]
    num_process: Index = 4
    """Maximum number of processes of an operator."""
    target_fields: tuple[str, ...] = ("prompt",)
    """Columns named by `target_fields`, the column with the judged text first."""
    priority_weights: dict[str, Finite] = {}
    """Weights of scores in the priority; empty: the guide's."""
    top_k: Integer = -1
    """Number of rows of highest priority kept; -1: all."""
    output: str = ""
    """Path of a copy of the result; empty: none."""
    juicer: JuicerSpec | None = None
    """The service for operators not available here; None if all are."""
    made: TasksMade | None = None
    """The record of the result; None before submission."""

    @property
    def text_key(self) -> str:
        """Column with the text judged by operators."""
        return self.target_fields[0]


def settings_digest(pipeline: TaskPipelineSpec) -> str:
    """Returns the sha256 (hex) of all settings of a pipeline that influence its result."""
    deciding = msgspec.structs.replace(pipeline, made=None, juicer=None, output="", num_process=1)
    return hashlib.sha256(msgspec.json.encode(deciding, order="deterministic")).hexdigest()

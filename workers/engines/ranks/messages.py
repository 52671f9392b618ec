"""Messages between a trainer process and its ranks: a length, then msgpack with arrays as raw bytes, no pickle.

A call goes to every rank, and each rank answers once. A file may accompany a call, as a descriptor.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec
import numpy as np

from rftd.ops.decoding import msgpack_decoder
from rftd.streams.spec.spec import ExperimentSpec, StageSpec, TrainerSpec
from rftd.workers.learning.engine import StepResult, TrainBatch, TrainSample

_LENGTH: Final = struct.Struct("<Q")
_READ_BYTES: Final = 1 << 20
_DTYPES: Final = {
    "tokens": "<u4",
    "loss_mask": "u1",
    "logprobs": "<f4",
    "advantages": "<f4",
    "versions": "<i8",
    "temperatures": "<f8",
}
"""Arrays of a sample, all one-dimensional."""
LOOPBACK: Final = "127.0.0.1"


class RankPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Position of one process among the ranks, and the settings of its engine."""

    rank: int
    ranks: int
    maker: str
    """`module:function`, which makes the rank's engine from this struct."""
    trainer: TrainerSpec
    threads: int
    local_rank: int
    """Index among the ranks of its node."""
    local_ranks: int
    address: str = LOOPBACK
    """Address of the rank's node for the other ranks; the loopback's on a single machine."""


class SampleBytes(msgspec.Struct, frozen=True, kw_only=True):
    """A `TrainSample` with arrays as raw little-endian bytes, for a message without pickle."""

    tokens: bytes
    prompt_tokens: int
    loss_mask: bytes
    logprobs: bytes | None
    advantages: bytes | None
    versions: bytes | None
    reward: float
    group: int
    temperatures: bytes | None
    staleness_versions: int
    expert: bool
    pair: int
    chosen: bool | None

    @classmethod
    def of(cls, sample: TrainSample) -> SampleBytes:
        """Encodes a sample's arrays as bytes."""
        fields = msgspec.structs.asdict(sample)
        for name, dtype in _DTYPES.items():
            array = fields[name]
            fields[name] = None if array is None else np.ascontiguousarray(array, dtype).tobytes()
        return cls(**fields)

    def sample(self) -> TrainSample:
        """Decodes the sample, with arrays over these bytes."""
        fields = msgspec.structs.asdict(self)
        for name, dtype in _DTYPES.items():
            array_bytes = fields[name]
            fields[name] = None if array_bytes is None else np.frombuffer(array_bytes, dtype)
        return TrainSample(**fields)


class LookCall(msgspec.Struct, frozen=True, kw_only=True, tag="look"):
    """The first call: sets the rank's place, and requests a report of releases and files."""

    place: RankPlace
    experiment: ExperimentSpec
    model_path: str
    left_in_job: str = ""
    """A file just made in the job's folder by the trainer process; empty: there is no such folder yet."""


class JoinCall(msgspec.Struct, frozen=True, kw_only=True, tag="join"):
    """Join the ranks through torch.distributed with `backend`; empty: without it. Rank 0 gets the store's socket."""

    backend: str
    address: str
    """Address of rank 0's node, where the store listens."""
    port: int
    timeout_s: float


class OpenCall(msgspec.Struct, frozen=True, kw_only=True, tag="open"):
    """Make the rank's engine with the maker of its place, and open the model."""

    experiment: ExperimentSpec
    model_path: str


class BeginCall(msgspec.Struct, frozen=True, kw_only=True, tag="begin_stage"):
    """Begin a stage on the rank's engine, with a fresh optimizer."""

    stage: StageSpec


class TrainCall(msgspec.Struct, frozen=True, kw_only=True, tag="train"):
    """Train a whole batch; the rank's engine selects its share."""

    step: int
    stage_step: int
    samples: tuple[SampleBytes, ...]
    items: tuple[int, ...]
    metrics: dict[str, float]

    @classmethod
    def of(cls, batch: TrainBatch) -> TrainCall:
        """Encodes a batch's arrays as bytes."""
        return cls(
            step=batch.step,
            stage_step=batch.stage_step,
            samples=tuple(map(SampleBytes.of, batch.samples)),
            items=tuple(batch.items),
            metrics=batch.metrics,
        )

    def batch(self) -> TrainBatch:
        """Decodes the batch."""
        return TrainBatch(
            step=self.step,
            stage_step=self.stage_step,
            samples=[sample_bytes.sample() for sample_bytes in self.samples],
            items=self.items,
            metrics=self.metrics,
        )


class DigestCall(msgspec.Struct, frozen=True, kw_only=True, tag="digest"):
    """Digest the weights: by `checksum`, by `sha256`, or in the form of a recorded digest."""

    form: str
    """`checksum`, `sha256`, or the recorded digest."""


class SnapshotCall(msgspec.Struct, frozen=True, kw_only=True, tag="snapshot"):
    """Write the weights into the accompanying file; a rank of another node, without the file, sends its parts."""


class SaveCall(msgspec.Struct, frozen=True, kw_only=True, tag="save"):
    """Save a checkpoint: each rank writes its parts into the folder."""

    folder: str
    hf: bool


class LoadCall(msgspec.Struct, frozen=True, kw_only=True, tag="load"):
    """Load a checkpoint of any number of ranks; `stage` None: the weights alone."""

    folder: str
    stage: StageSpec | None


class RestCall(msgspec.Struct, frozen=True, kw_only=True, tag="rest"):
    """Release the device's memory for others, or take it back (`wake`)."""

    wake: bool


class CloseCall(msgspec.Struct, frozen=True, kw_only=True, tag="close"):
    """Close the engine, leave the process group, and end the process."""


RankCall: TypeAlias = (
    LookCall
    | JoinCall
    | OpenCall
    | BeginCall
    | TrainCall
    | DigestCall
    | SnapshotCall
    | SaveCall
    | LoadCall
    | RestCall
    | CloseCall
)


class RankDone(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    """A call was executed; the fields in use depend on the method."""

    text: str = ""
    result: StepResult | None = None
    facts: dict[str, str] = {}
    deterministic: bool = False
    exact: bool = True
    tied: dict[str, str] = {}
    """Names of a snapshot's tied tensors, with the name of the written one."""


class RankFailed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """A call raised an error of this project, `OSError`, or any other error, reported as text."""

    kind: str
    what: str
    where: str | None = None
    field: str | None = None
    fix: str | None = None
    errno: int = 0


class RankPart(msgspec.Struct, frozen=True, kw_only=True, tag="part"):
    """A part of a snapshot's weights, sent before the answer to the process that has the file."""

    file_size_bytes: int
    begin: int
    """Offset in the file of the tensor's beginning."""
    name: str
    dtype: str
    shape: tuple[int, ...]
    """Shape of the whole tensor."""
    offset: tuple[int, ...]
    size: tuple[int, ...]
    data: bytes
    """Numbers of this part, in C order."""


RankAnswer: TypeAlias = RankDone | RankFailed
RankMessage: TypeAlias = RankAnswer | RankPart


class Pipe:
    """One end of the connection between a rank and its trainer process; for one sending and one receiving thread."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._read = bytearray()
        self._descriptors: list[int] = []

    def send(self, message: RankCall | RankMessage, descriptors: Sequence[int] = ()) -> None:
        """Sends a whole message. Raises OSError if the other end is closed, or does not read in time."""
        payload = msgspec.msgpack.encode(message)
        head = _LENGTH.pack(len(payload))
        if descriptors:
            socket.send_fds(self._end, [head], list(descriptors))
        else:
            self._end.sendall(head)
        self._end.sendall(payload)

    def receive_call(self) -> tuple[RankCall, list[int]] | None:
        """Returns the next call with its descriptors, to be closed by the caller; None at the end."""
        payload = self._message()
        if payload is None:
            return None
        descriptors = self._descriptors
        self._descriptors = []
        call: RankCall = msgpack_decoder(RankCall).decode(payload)  # type: ignore[arg-type]
        return call, descriptors

    def receive_answer(self) -> RankMessage | None:
        """Returns the next answer, or a part before the answer; None at the end."""
        payload = self._message()
        if payload is None:
            return None
        answer: RankMessage = msgpack_decoder(RankMessage).decode(payload)  # type: ignore[arg-type]
        return answer

    def close(self) -> None:
        """Closes this end; the other end reads until the end. Idempotent."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []
        self._end.close()

    def shut(self) -> None:
        """Ends the connection, also for a receiving thread."""
        try:
            self._end.shutdown(socket.SHUT_RDWR)
        except OSError:  # the other end was first
            return

    def _message(self) -> bytes | None:
        head = self._exactly(_LENGTH.size)
        return None if head is None else self._exactly(_LENGTH.unpack(head)[0])

    def _exactly(self, size: int) -> bytes | None:
        while len(self._read) < size:
            try:
                received, descriptors, _, _ = socket.recv_fds(self._end, _READ_BYTES, 4)
            except OSError:
                return None
            if not received:
                return None
            self._descriptors += descriptors
            self._read += received
        message_bytes = bytes(self._read[:size])
        del self._read[:size]
        return message_bytes

"""Messages between a trainer process and its ranks: a length, then msgpack; arrays are raw bytes in it, no pickle.

A call goes to every rank, and each answers once. A file may be sent along with a call, as a descriptor.
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
"""The arrays of a sample, all of one dimension."""
LOOPBACK: Final = "127.0.0.1"


class RankPlace(msgspec.Struct, frozen=True, kw_only=True):
    """The place of one process among the ranks, and what its engine is made with."""

    rank: int
    ranks: int
    maker: str
    """`module:function`, which takes this place and gives the rank's engine."""
    trainer: TrainerSpec
    threads: int
    local_rank: int
    """The place among the ranks of its node."""
    local_ranks: int
    address: str = LOOPBACK
    """The address of its node at which others reach it; the loopback's where all are of one machine."""


class SampleBytes(msgspec.Struct, frozen=True, kw_only=True):
    """A `TrainSample` whose arrays are bytes."""

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
        """The sample's bytes."""
        fields = msgspec.structs.asdict(sample)
        for name, dtype in _DTYPES.items():
            array = fields[name]
            fields[name] = None if array is None else np.ascontiguousarray(array, dtype).tobytes()
        return cls(**fields)

    def sample(self) -> TrainSample:
        """The sample itself, its arrays over these bytes."""
        fields = msgspec.structs.asdict(self)
        for name, dtype in _DTYPES.items():
            data = fields[name]
            fields[name] = None if data is None else np.frombuffer(data, dtype)
        return TrainSample(**fields)


class LookCall(msgspec.Struct, frozen=True, kw_only=True, tag="look"):
    """The first call, which says to the rank who it is and asks what it sees."""

    place: RankPlace
    experiment: ExperimentSpec
    model_path: str
    left_in_job: str = ""
    """A file that the trainer process has just made in the job's folder; empty: there is no such folder yet."""


class JoinCall(msgspec.Struct, frozen=True, kw_only=True, tag="join"):
    """Meet the others: torch.distributed by `backend`; empty: without it. The store's listening socket is rank 0's."""

    backend: str
    address: str
    """The address of rank 0's node, at which the store listens."""
    port: int
    timeout_s: float


class OpenCall(msgspec.Struct, frozen=True, kw_only=True, tag="open"):
    """Make the engine and open it."""

    experiment: ExperimentSpec
    model_path: str


class BeginCall(msgspec.Struct, frozen=True, kw_only=True, tag="begin_stage"):
    """Begin a stage."""

    stage: StageSpec


class TrainCall(msgspec.Struct, frozen=True, kw_only=True, tag="train"):
    """Train a batch."""

    step: int
    stage_step: int
    samples: tuple[SampleBytes, ...]
    items: tuple[int, ...]
    metrics: dict[str, float]

    @classmethod
    def of(cls, batch: TrainBatch) -> TrainCall:
        """The batch's bytes."""
        return cls(
            step=batch.step,
            stage_step=batch.stage_step,
            samples=tuple(map(SampleBytes.of, batch.samples)),
            items=tuple(batch.items),
            metrics=batch.metrics,
        )

    def batch(self) -> TrainBatch:
        """The batch itself."""
        return TrainBatch(
            step=self.step,
            stage_step=self.stage_step,
            samples=[each.sample() for each in self.samples],
            items=self.items,
            metrics=self.metrics,
        )


class DigestCall(msgspec.Struct, frozen=True, kw_only=True, tag="digest"):
    """Digest the weights: by `checksum`, by `sha256`, or like one that was recorded."""

    form: str
    """`checksum`, `sha256`, or the digest that was recorded."""


class SnapshotCall(msgspec.Struct, frozen=True, kw_only=True, tag="snapshot"):
    """Write the weights into the file that comes along; a rank of another node, which gets none, sends its parts."""


class SaveCall(msgspec.Struct, frozen=True, kw_only=True, tag="save"):
    """Save a checkpoint."""

    folder: str
    hf: bool


class LoadCall(msgspec.Struct, frozen=True, kw_only=True, tag="load"):
    """Load a checkpoint."""

    folder: str
    stage: StageSpec | None


class RestCall(msgspec.Struct, frozen=True, kw_only=True, tag="rest"):
    """Leave the device's memory to others, or take it back (`wake`)."""

    wake: bool


class CloseCall(msgspec.Struct, frozen=True, kw_only=True, tag="close"):
    """Close the engine, and end."""


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
    """The call was carried out; what came of it, in the fields that its method has."""

    text: str = ""
    result: StepResult | None = None
    facts: dict[str, str] = {}
    deterministic: bool = False
    exact: bool = True
    tied: dict[str, str] = {}
    """The names of tensors of a snapshot that are written under another name."""


class RankFailed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The call raised an error of ours, or `OSError`, or another one that is told as text."""

    kind: str
    what: str
    where: str | None = None
    field: str | None = None
    fix: str | None = None
    errno: int = 0


class RankPart(msgspec.Struct, frozen=True, kw_only=True, tag="part"):
    """A part of the weights of a snapshot, before the answer: whoever has the file writes it."""

    file_size_bytes: int
    begin: int
    """The place in the file at which its tensor begins."""
    name: str
    dtype: str
    shape: tuple[int, ...]
    """Of the whole tensor."""
    offset: tuple[int, ...]
    size: tuple[int, ...]
    data: bytes
    """The numbers of this part, in C order."""


RankAnswer: TypeAlias = RankDone | RankFailed
RankMessage: TypeAlias = RankAnswer | RankPart


class Pipe:
    """One end of the connection of a rank and its trainer process. One thread sends, one receives."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._read = bytearray()
        self._descriptors: list[int] = []

    def send(self, message: RankCall | RankMessage, descriptors: Sequence[int] = ()) -> None:
        """Sends a message whole. Raises OSError if the other end is closed, or takes nothing for too long."""
        data = msgspec.msgpack.encode(message)
        head = _LENGTH.pack(len(data))
        if descriptors:
            socket.send_fds(self._end, [head], list(descriptors))
        else:
            self._end.sendall(head)
        self._end.sendall(data)

    def receive_call(self) -> tuple[RankCall, list[int]] | None:
        """The next call, with the descriptors that came along, which are the caller's to close; None at the end."""
        data = self._message()
        if data is None:
            return None
        descriptors = self._descriptors
        self._descriptors = []
        call: RankCall = msgpack_decoder(RankCall).decode(data)  # type: ignore[arg-type]
        return call, descriptors

    def receive_answer(self) -> RankMessage | None:
        """The next answer, or a part before it; None at the end."""
        data = self._message()
        if data is None:
            return None
        answer: RankMessage = msgpack_decoder(RankMessage).decode(data)  # type: ignore[arg-type]
        return answer

    def close(self) -> None:
        """Closes this end; the other one reads to its end. Idempotent."""
        for each in self._descriptors:
            os.close(each)
        self._descriptors = []
        self._end.close()

    def shut(self) -> None:
        """Ends the connection, also for a thread that receives from it."""
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
                data, descriptors, _, _ = socket.recv_fds(self._end, _READ_BYTES, 4)
            except OSError:
                return None
            if not data:
                return None
            self._descriptors += descriptors
            self._read += data
        taken = bytes(self._read[:size])
        del self._read[:size]
        return taken

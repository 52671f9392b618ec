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
"""Form of a message's length."""
_READ_BYTES: Final = 1 << 20
"""Bytes read from the socket at once."""
_DTYPES: Final = {
    "tokens": "<u4",
    "loss_mask": "u1",
    "logprobs": "<f4",
    "advantages": "<f4",
    "versions": "<i8",
    "temperatures": "<f8",
}
"""Numpy dtypes of a sample's arrays, by field; every array is one-dimensional."""
LOOPBACK: Final = "127.0.0.1"
"""Address of ranks on the trainer's own machine."""


class RankPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's number, node and engine settings, sent to its process with the first call."""

    rank: int
    """Number of the rank."""
    ranks: int
    """Number of ranks on all machines."""
    maker: str
    """`module:function`: constructs the rank's engine from this struct."""
    trainer: TrainerSpec
    """Trainer of the specification."""
    threads: int
    """Number of threads of the rank."""
    local_rank: int
    """Number of the rank among the ranks of its node, from 0."""
    local_ranks: int
    """Number of ranks on this machine."""
    address: str = LOOPBACK
    """Address of the rank's node for other ranks; the loopback address if all ranks are on one machine."""


class SampleBytes(msgspec.Struct, frozen=True, kw_only=True):
    """A `TrainSample` for a message: fields as in `TrainSample`, arrays as raw little-endian bytes."""

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
    role: str
    expert: bool
    pair: int
    chosen: bool | None

    @classmethod
    def of(cls, sample: TrainSample) -> SampleBytes:
        """Encodes a sample, its arrays as bytes."""
        fields = msgspec.structs.asdict(sample)
        for name, dtype in _DTYPES.items():
            array = fields[name]
            fields[name] = None if array is None else np.ascontiguousarray(array, dtype).tobytes()
        return cls(**fields)

    def sample(self) -> TrainSample:
        """Returns the decoded sample, with arrays that share these bytes."""
        fields = msgspec.structs.asdict(self)
        for name, dtype in _DTYPES.items():
            array_bytes = fields[name]
            fields[name] = None if array_bytes is None else np.frombuffer(array_bytes, dtype)
        return TrainSample(**fields)


class LookCall(msgspec.Struct, frozen=True, kw_only=True, tag="look"):
    """First call: tells the rank its place, and requests its releases and digests of model files, to be compared among
    ranks.
    """

    place: RankPlace
    """The rank's number, machine and maker."""
    experiment: ExperimentSpec
    """Specification of the experiment."""
    model_path: str
    """Folder of the model."""
    left_in_job: str = ""
    """Path of a file just created in the job's folder by the trainer process, which the rank must see; empty if the
    folder does not exist yet.
    """


class JoinCall(msgspec.Struct, frozen=True, kw_only=True, tag="join"):
    """Call to join the ranks by torch.distributed with `backend`; an empty backend joins nothing. Rank 0 receives the
    store's socket.
    """

    backend: str
    """Backend of torch.distributed; empty for none."""
    address: str
    """Address of rank 0's node, where the store listens."""
    port: int
    """Port of the ranks' store."""
    timeout_s: float
    """Time-out of collective operations in seconds."""


class OpenCall(msgspec.Struct, frozen=True, kw_only=True, tag="open"):
    """Call to construct the rank's engine, and to open the model."""

    experiment: ExperimentSpec
    """Specification of the experiment."""
    model_path: str
    """Folder of the model."""


class BeginCall(msgspec.Struct, frozen=True, kw_only=True, tag="begin_stage"):
    """Call to begin a stage, with a fresh optimizer."""

    stage: StageSpec
    """Stage to begin."""


class TrainCall(msgspec.Struct, frozen=True, kw_only=True, tag="train"):
    """Call to train a batch. Every rank receives the complete batch, and selects its share."""

    step: int
    """Number of the step."""
    stage_step: int
    """Number of the step within the stage."""
    samples: tuple[SampleBytes, ...]
    """Samples of the batch."""
    items: tuple[int, ...]
    """Number of samples of each planned item."""
    metrics: dict[str, float]
    """Metrics of the batch."""

    @classmethod
    def of(cls, batch: TrainBatch) -> TrainCall:
        """Encodes a batch, its arrays as bytes."""
        return cls(
            step=batch.step,
            stage_step=batch.stage_step,
            samples=tuple(map(SampleBytes.of, batch.samples)),
            items=tuple(batch.items),
            metrics=batch.metrics,
        )

    def batch(self) -> TrainBatch:
        """Returns the decoded batch."""
        return TrainBatch(
            step=self.step,
            stage_step=self.stage_step,
            samples=[sample_bytes.sample() for sample_bytes in self.samples],
            items=self.items,
            metrics=self.metrics,
        )


class DigestCall(msgspec.Struct, frozen=True, kw_only=True, tag="digest"):
    """Call to digest the weights."""

    form: str
    """`checksum`, `sha256`, or a recorded digest whose form is wanted."""


class SnapshotCall(msgspec.Struct, frozen=True, kw_only=True, tag="snapshot"):
    """Call to write the weights into the accompanying file; ranks of other nodes, without the file, send their
    parts.
    """


class SaveCall(msgspec.Struct, frozen=True, kw_only=True, tag="save"):
    """Call to save a checkpoint: each rank writes its parts into the folder."""

    folder: str
    """Folder of the checkpoint."""
    hf: bool
    """True to write Hugging Face's layout too."""


class LoadCall(msgspec.Struct, frozen=True, kw_only=True, tag="load"):
    """Call to load a checkpoint, whatever number of ranks wrote it; `stage` None: weights only."""

    folder: str
    """Folder of the checkpoint."""
    stage: StageSpec | None
    """Stage to continue, with its optimizer; None for the weights alone."""


class RestCall(msgspec.Struct, frozen=True, kw_only=True, tag="rest"):
    """Call to free the device's memory, or with `wake` to occupy it again."""

    wake: bool
    """True to occupy the devices' memory again; False to free it."""


class CloseCall(msgspec.Struct, frozen=True, kw_only=True, tag="close"):
    """Call to close the engine, leave the process group, and end the process."""


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
"""A call of the trainer process."""


class RankDone(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    """Answer to an executed call; which fields are set depends on the call."""

    text: str = ""
    """A digest, or empty."""
    result: StepResult | None = None
    """Figures of a trained step; None for other calls."""
    facts: dict[str, str] = {}
    """Facts seen by the rank, or of the engine's environment."""
    deterministic: bool = False
    """True if the rank's engine is deterministic."""
    exact: bool = True
    """False if a snapshot's numbers were rounded to the explorers' dtype."""
    tied: dict[str, str] = {}
    """Names of tied tensors that were not written, each with the name of the written tensor."""


class RankFailed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """Answer to a call that raised an error: one of rftd's by its class, `OSError`, or any other as text."""

    kind: str
    """Class name of the error; empty for a class unknown to this project."""
    what: str
    """Text of the error."""
    where: str | None = None
    """Location named by the error."""
    field: str | None = None
    """Field named by the error."""
    fix: str | None = None
    """Advice of the error."""
    errno: int = 0
    """Number of an OSError; 0 for other errors."""


class RankPart(msgspec.Struct, frozen=True, kw_only=True, tag="part"):
    """A part of the weights, sent by a rank on another node before its answer, to be written into the file there."""

    file_size_bytes: int
    """Size of the complete file."""
    begin: int
    """Offset in the file of the tensor's first byte."""
    name: str
    """Name of the tensor."""
    dtype: str
    """Data type of the tensor."""
    shape: tuple[int, ...]
    """Shape of the complete tensor."""
    offset: tuple[int, ...]
    """Index of the part's first number in the tensor, by dimension."""
    size: tuple[int, ...]
    """Extent of the part, by dimension."""
    data: bytes
    """The part's numbers, in C order."""


RankAnswer: TypeAlias = RankDone | RankFailed
"""Answer of a rank to a call."""
RankMessage: TypeAlias = RankAnswer | RankPart
"""Message of a rank: an answer, or a part of weights before it."""


class Pipe:
    """One end of the connection between a rank and its trainer process; one thread may send while another receives."""

    def __init__(self, end: socket.socket) -> None:
        """Wraps one end of a connected socket."""
        self._end = end
        self._read = bytearray()
        self._descriptors: list[int] = []

    def send(self, message: RankCall | RankMessage, descriptors: Sequence[int] = ()) -> None:
        """Sends a message, with open files. Raises OSError if the other end is closed, or does not read in time."""
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
        """Reads the next message's bytes; None at the end of the connection."""
        head = self._exactly(_LENGTH.size)
        return None if head is None else self._exactly(_LENGTH.unpack(head)[0])

    def _exactly(self, size: int) -> bytes | None:
        """Reads the next `size` bytes, and stores descriptors received with them; None at the end of the connection."""
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

"""The process of one rank: carries out the calls of its trainer process, one after the other, on its main thread.

It ends when its trainer process does, however that ends: then the connection is closed, which a thread sees at once, or
within a minute where another machine is gone without a word.
"""

from __future__ import annotations

import errno
import faulthandler
import importlib
import os
import queue
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TypeAlias

from rftd.ops.errors import RftdError
from rftd.workers.engines.ranks.messages import (
    BeginCall,
    CloseCall,
    DigestCall,
    JoinCall,
    LoadCall,
    LookCall,
    OpenCall,
    Pipe,
    RankCall,
    RankDone,
    RankFailed,
    RankPart,
    RankPlace,
    RestCall,
    SaveCall,
    SnapshotCall,
    TrainCall,
)
from rftd.workers.engines.ranks.nodes import interface_of
from rftd.workers.engines.ranks.sight import seen
from rftd.workers.engines.ranks.spool import SpreadingEngine, spread_parts, write_spread, write_whole
from rftd.workers.learning.engine import DigestingEngine, RestingEngine, TrainerEngine
from rftd.workers.weights.checksum import form_of

_Calls: TypeAlias = "queue.SimpleQueue[tuple[RankCall, list[int]]]"


class RankProcess:
    """One rank: its place, and its engine once it is open."""

    def __init__(self, send_part: Callable[[RankPart], None]) -> None:
        """`send_part` sends a part of the weights to the trainer process of another machine."""
        self._send_part = send_part
        self._place: RankPlace | None = None
        self._engine: TrainerEngine | None = None
        self._joined = False

    def answer(self, call: RankCall, descriptors: list[int]) -> RankDone:
        """Carries out one call. Whatever the engine raises is raised."""
        if isinstance(call, LookCall):
            self._place = call.place
            return RankDone(facts=seen(call.experiment, call.model_path, call.left_in_job))
        if isinstance(call, JoinCall):
            self._join(call, descriptors)
            return RankDone()
        if isinstance(call, OpenCall):
            return self._open(call)
        if isinstance(call, CloseCall):
            return self._close()
        engine = self._engine
        assert engine is not None, "called before it was opened"
        match call:
            case BeginCall():
                engine.begin_stage(call.stage)
            case TrainCall():
                return RankDone(result=engine.train(call.batch()))
            case DigestCall():
                return RankDone(text=_digest(engine, call.form))
            case SnapshotCall():
                return self._snapshot(engine, descriptors[0] if descriptors else None)
            case SaveCall():
                engine.save(Path(call.folder), hf=call.hf)
            case LoadCall():
                engine.load(Path(call.folder), call.stage)
            case RestCall():
                if isinstance(engine, RestingEngine):
                    engine.wake() if call.wake else engine.rest()
        return RankDone()

    def _join(self, call: JoinCall, descriptors: list[int]) -> None:
        """Meets the other ranks, at a store that listens at one address only: the loopback's where all are here."""
        place = self._place
        assert place is not None
        os.environ |= {
            "RANK": str(place.rank),
            "WORLD_SIZE": str(place.ranks),
            "LOCAL_RANK": str(place.local_rank),
            "LOCAL_WORLD_SIZE": str(place.local_ranks),
            "MASTER_ADDR": call.address,
            "MASTER_PORT": str(call.port),
        }
        if not call.backend:
            return
        # Of a machine with several networks neither backend knows which one leads to the other nodes.
        if interface := interface_of(place.address):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
            if place.local_ranks < place.ranks:
                os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
        import torch
        from torch import distributed

        if call.backend == "nccl":
            torch.cuda.set_device(place.local_rank)
        wait = timedelta(seconds=call.timeout_s)
        store = distributed.TCPStore(  # type: ignore[attr-defined]
            call.address,
            call.port,
            place.ranks,
            is_master=place.rank == 0,
            timeout=wait,
            # The trainer process has bound it, so that nobody takes the port in between, and to this address only.
            master_listen_fd=os.dup(descriptors[0]) if place.rank == 0 else None,
        )
        distributed.init_process_group(call.backend, store=store, rank=place.rank, world_size=place.ranks, timeout=wait)
        self._joined = True

    def _open(self, call: OpenCall) -> RankDone:
        place = self._place
        assert place is not None
        module, _, function = place.maker.partition(":")
        engine: TrainerEngine = getattr(importlib.import_module(module), function)(place)
        self._engine = engine
        engine.open(call.experiment, call.model_path)
        # Their number decides in which order gradients are added, and so their last bits.
        facts = engine.environment() | {"ranks": str(place.ranks)}
        return RankDone(facts=facts, deterministic=engine.deterministic)

    def _snapshot(self, engine: TrainerEngine, descriptor: int | None) -> RankDone:
        """`descriptor`: the file's; None on a node that does not have it."""
        assert self._place is not None
        if isinstance(engine, SpreadingEngine):
            weights = engine.spread()
            if descriptor is None:
                for part in spread_parts(weights):
                    self._send_part(part)
            else:
                write_spread(descriptor, weights)
            return RankDone(exact=weights.exact)
        # On all ranks: it may be a collective. Its bytes are those of all.
        snapshot = engine.snapshot()
        if self._place.rank:
            return RankDone(exact=snapshot.exact)
        assert descriptor is not None, "rank 0 is on the node of its trainer process"
        return RankDone(exact=snapshot.exact, tied=write_whole(descriptor, snapshot.weights()))

    def _close(self) -> RankDone:
        if self._engine is not None:
            self._engine.close()
            self._engine = None
        if self._joined:
            from torch import distributed

            distributed.destroy_process_group()
            self._joined = False
        return RankDone()


def _digest(engine: TrainerEngine, form: str) -> str:
    if form == "checksum":
        return engine.checksum()
    if form == "sha256":
        return engine.sha256()
    if isinstance(engine, DigestingEngine):
        return engine.digest_like(form)
    return engine.sha256() if form_of(form) in ("sha256", "tensors") else engine.checksum()


def _failed(error: Exception) -> RankFailed:
    if isinstance(error, RftdError):
        return RankFailed(
            kind=type(error).__name__, what=error.what, where=error.where, field=error.field, fix=error.fix
        )
    # Into the worker's log, through the trainer process, which keeps the last lines.
    traceback.print_exception(error)
    if isinstance(error, OSError):
        return RankFailed(kind="OSError", what=error.strerror or str(error), errno=error.errno or errno.EIO)
    return RankFailed(kind="", what=f"{type(error).__name__}: {error}")


def _receive(pipe: Pipe, calls: _Calls) -> None:
    while (received := pipe.receive_call()) is not None:
        calls.put(received)
    # The trainer process has ended, or gives this rank up. At once: the main thread may wait for ranks that are gone.
    os._exit(1)


def main(descriptor: int) -> None:
    """Answers calls from the socket with this descriptor until one of them is to close."""
    # A trainer process that is asked to end finishes its step first, and its ranks with it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # Where it was stuck is told as its last lines when it is given up.
    faulthandler.enable()
    pipe = Pipe(socket.socket(fileno=descriptor))
    calls: _Calls = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(pipe, calls), name="calls", daemon=True).start()
    process = RankProcess(pipe.send)
    while True:
        call, descriptors = calls.get()
        try:
            answer: RankDone | RankFailed = process.answer(call, descriptors)
        except Exception as error:
            answer = _failed(error)
        finally:
            for each in descriptors:
                os.close(each)
        sys.stdout.flush()
        pipe.send(answer)
        if isinstance(call, CloseCall):
            return


if __name__ == "__main__":
    main(int(sys.argv[1]))

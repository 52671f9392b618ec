"""The process of one rank: executes the calls of its trainer process one after the other, on the main thread.

Ends with the trainer process, whatever ends the latter: a thread sees the closed connection at once, or within a minute
if another machine vanished silently.
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
from rftd.workers.engines.ranks.sight import facts_of_rank
from rftd.workers.engines.ranks.spool import SpreadingEngine, spread_parts, write_spread, write_whole
from rftd.workers.learning.engine import DigestingEngine, RestingEngine, TrainerEngine
from rftd.workers.weights.checksum import form_of

_Calls: TypeAlias = "queue.SimpleQueue[tuple[RankCall, list[int]]]"
"""Calls received and not executed yet, each with the files sent along."""


class RankProcess:
    """One rank: its place among the ranks, and its engine once opened."""

    def __init__(self, send_part: Callable[[RankPart], None]) -> None:
        """`send_part` sends a part of the weights to the trainer process on another machine."""
        self._send_part = send_part
        self._place: RankPlace | None = None
        self._engine: TrainerEngine | None = None
        self._joined = False

    def answer(self, call: RankCall, descriptors: list[int]) -> RankDone:
        """Executes one call. Raises the engine's errors."""
        if isinstance(call, LookCall):
            self._place = call.place
            return RankDone(facts=facts_of_rank(call.experiment, call.model_path, call.left_in_job))
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
        """Joins the other ranks at a store listening at one address only: the loopback's if all ranks are on one
        machine.
        """
        rank_place = self._place
        assert rank_place is not None
        os.environ |= {
            "RANK": str(rank_place.rank),
            "WORLD_SIZE": str(rank_place.ranks),
            "LOCAL_RANK": str(rank_place.local_rank),
            "LOCAL_WORLD_SIZE": str(rank_place.local_ranks),
            "MASTER_ADDR": call.address,
            "MASTER_PORT": str(call.port),
        }
        if not call.backend:
            return
        # On a machine with several networks neither backend knows the one leading to the other nodes.
        if interface := interface_of(rank_place.address):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
            if rank_place.local_ranks < rank_place.ranks:
                os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
        import torch
        from torch import distributed

        if call.backend == "nccl":
            torch.cuda.set_device(rank_place.local_rank)
        wait = timedelta(seconds=call.timeout_s)
        store = distributed.TCPStore(  # type: ignore[attr-defined]
            call.address,
            call.port,
            rank_place.ranks,
            is_master=rank_place.rank == 0,
            timeout=wait,
            # Bound by the trainer process, so that no other process can take the port, and at this address only.
            master_listen_fd=os.dup(descriptors[0]) if rank_place.rank == 0 else None,
        )
        distributed.init_process_group(
            call.backend, store=store, rank=rank_place.rank, world_size=rank_place.ranks, timeout=wait
        )
        self._joined = True

    def _open(self, call: OpenCall) -> RankDone:
        """Makes and opens the rank's engine; returns the facts of its environment."""
        rank_place = self._place
        assert rank_place is not None
        module, _, function = rank_place.maker.partition(":")
        engine: TrainerEngine = getattr(importlib.import_module(module), function)(rank_place)
        self._engine = engine
        engine.open(call.experiment, call.model_path)
        # The number of ranks decides the order in which gradients are added, and so their last bits.
        facts = engine.environment() | {"ranks": str(rank_place.ranks)}
        return RankDone(facts=facts, deterministic=engine.deterministic)

    def _snapshot(self, engine: TrainerEngine, descriptor: int | None) -> RankDone:
        """Writes this rank's weights. `descriptor`: of the file; None on a node without the file."""
        assert self._place is not None
        if isinstance(engine, SpreadingEngine):
            weights = engine.spread()
            if descriptor is None:
                for weights_part in spread_parts(weights):
                    self._send_part(weights_part)
            else:
                write_spread(descriptor, weights)
            return RankDone(exact=weights.exact)
        # On all ranks, because it may be a collective. Its bytes are those of all ranks.
        snapshot = engine.snapshot()
        if self._place.rank:
            return RankDone(exact=snapshot.exact)
        assert descriptor is not None, "rank 0 is on the node of its trainer process"
        return RankDone(exact=snapshot.exact, tied=write_whole(descriptor, snapshot.weights()))

    def _close(self) -> RankDone:
        """Closes the engine, and leaves the group of ranks."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None
        if self._joined:
            from torch import distributed

            distributed.destroy_process_group()
            self._joined = False
        return RankDone()


def _digest(engine: TrainerEngine, form: str) -> str:
    """Returns the weights' digest in the requested form, or in the nearest form of the engine."""
    if form == "checksum":
        return engine.checksum()
    if form == "sha256":
        return engine.sha256()
    if isinstance(engine, DigestingEngine):
        return engine.digest_like(form)
    return engine.sha256() if form_of(form) in ("sha256", "tensors") else engine.checksum()


def _failure_answer(error: Exception) -> RankFailed:
    """Returns an error raised by a call as the rank's answer."""
    if isinstance(error, RftdError):
        return RankFailed(
            kind=type(error).__name__, what=error.what, where=error.where, field=error.field, fix=error.fix
        )
    # Into the worker's log, through the trainer process, which remembers the last lines.
    traceback.print_exception(error)
    if isinstance(error, OSError):
        return RankFailed(kind="OSError", what=error.strerror or str(error), errno=error.errno or errno.EIO)
    return RankFailed(kind="", what=f"{type(error).__name__}: {error}")


def _receive(pipe: Pipe, calls: _Calls) -> None:
    """Queues calls until the connection ends, then ends the process."""
    while (received := pipe.receive_call()) is not None:
        calls.put(received)
    # The trainer process ended, or abandoned this rank. Exit at once: the main thread may be waiting for ended ranks.
    os._exit(1)


def main(descriptor: int) -> None:
    """Answers calls from the socket with this descriptor until a call to close."""
    # A trainer process asked to end finishes its step first, and its ranks with it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # On the signal sent at abandonment, writes a stack trace, seen by the trainer as last lines.
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
            answer = _failure_answer(error)
        finally:
            for call_descriptor in descriptors:
                os.close(call_descriptor)
        sys.stdout.flush()
        pipe.send(answer)
        if isinstance(call, CloseCall):
            return


if __name__ == "__main__":
    main(int(sys.argv[1]))

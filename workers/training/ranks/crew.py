"""`RankCrew`: the processes of an engine, on this machine. Whatever one of them does wrong is the end of all."""

from __future__ import annotations

import collections
import os
import queue
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NoReturn

import psutil

from rftd.ops.decoding import UNREADABLE
from rftd.ops.errors import RankError, RftdError
from rftd.workers.training.ranks.messages import CloseCall, Pipe, RankAnswer, RankCall, RankDone, RankFailed

_LINES: Final = 12
"""Last lines of a rank that are told when it is lost."""
_LINE_CHARACTERS: Final = 300
_GRACE_S: Final = 10.0
"""The wait for the others once a rank has failed: they may wait for it in a collective, and will not answer."""
_END_S: Final = 5.0
"""The wait for a process that was told to end, or whose connection is closed."""


@dataclass(frozen=True, slots=True)
class RankChild:
    """One process."""

    rank: int
    process: subprocess.Popen[bytes]
    pipe: Pipe
    lines: collections.deque[str]
    reader: threading.Thread
    """The thread that copies what the process writes."""

    def last_lines(self) -> str:
        """The end of what it wrote."""
        self.reader.join(1.0)
        return "".join(f"\n    {line}" for line in self.lines)

    def ended(self) -> str:
        """The end of the rank, in words."""
        try:
            code = self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return "closed its connection"
        if code >= 0:
            return f"ended with exit code {code}"
        name = signal.Signals(-code).name
        return f"was ended by {name}" + (", as the kernel does where memory is short" if name == "SIGKILL" else "")


class RankCrew:
    """N processes, each of which carries out every call. One thread calls; any may close or watch."""

    def __init__(self, ranks: int, *, timeout_s: float) -> None:
        """Starts them. `timeout_s` is the longest that a call may take. Raises OSError."""
        self._timeout_s = timeout_s
        self._answers: queue.SimpleQueue[tuple[int, RankAnswer | None]] = queue.SimpleQueue()
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._lost: RankError | None = None
        self._gone: list[int] = []
        self._closing = False
        self._children: list[RankChild] = []
        try:
            for rank in range(ranks):
                self._children.append(self._start(rank, ranks))
        except BaseException:
            self._kill()
            raise

    def pids(self) -> list[int]:
        """The processes, by rank."""
        return [each.process.pid for each in self._children]

    def call(
        self, calls: Sequence[RankCall] | RankCall, method: str, descriptors: Mapping[int, Sequence[int]] | None = None
    ) -> list[RankDone]:
        """Has all ranks carry out a call, or each its own; returns their answers by rank. `method` is for messages.

        Raises what all ranks raised. Whatever else goes wrong is the end of all of them: the error of the rank that
        raised it alone, or RankError if one ended or none answered in time.
        """
        if self._lost is not None:
            raise self._lost
        for child in self._children:
            call = calls[child.rank] if isinstance(calls, Sequence) else calls
            # One that has ended is found below, by the end of its connection.
            with suppress(OSError):
                child.pipe.send(call, (descriptors or {}).get(child.rank, ()))
        answers: dict[int, RankAnswer] = {}
        deadline = time.monotonic() + self._timeout_s
        while len(answers) < len(self._children):
            try:
                rank, answer = self._answers.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            if answer is None:
                self._lose(method, rank)
            answers[rank] = answer
            if isinstance(answer, RankFailed):
                deadline = min(deadline, time.monotonic() + _GRACE_S)
        failed = {rank: answer for rank, answer in sorted(answers.items()) if isinstance(answer, RankFailed)}
        if len(failed) == len(self._children):
            raise _joint(list(failed.values()))
        if failed:
            self._fail_alone(method, failed, answers.keys())
        if len(answers) < len(self._children):
            self._give_up(method, answers.keys())
        return [answer for _, answer in sorted(answers.items()) if isinstance(answer, RankDone)]

    def watch(self) -> None:
        """Blocks until `close`. Raises RankError as soon as a process is lost."""
        self._over.wait()
        if self._gone and not self._closing:
            self._lose("", self._gone[0])

    def close(self) -> None:
        """Has all ranks end, and waits for them. Idempotent."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
        if self._lost is None:
            for child in self._children:
                with suppress(OSError):
                    child.pipe.send(CloseCall())
        self._end_all()

    def differ(self, error: RankError) -> NoReturn:
        """Ends all ranks, and raises the error that says in what they differ."""
        raise self._set_lost(error)

    def _start(self, rank: int, ranks: int) -> RankChild:
        mine, theirs = socket.socketpair()
        # A rank that takes nothing, stopped or stuck, must not hold the caller up for ever.
        mine.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(self._timeout_s) + 1, 0))
        module = "rftd.workers.training.ranks.rank_process"
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(theirs.fileno()), f"rank={rank}/{ranks}"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        pipe = Pipe(mine)
        lines: collections.deque[str] = collections.deque(maxlen=_LINES)
        reader = threading.Thread(target=_copy, args=(process, lines), name=f"rank-{rank}-output", daemon=True)
        reader.start()
        child = RankChild(rank, process, pipe, lines, reader)
        threading.Thread(target=self._receive, args=(child,), name=f"rank-{rank}-answers", daemon=True).start()
        return child

    def _receive(self, child: RankChild) -> None:
        with suppress(*UNREADABLE):
            while (answer := child.pipe.receive_answer()) is not None:
                self._answers.put((child.rank, answer))
        self._gone.append(child.rank)
        self._answers.put((child.rank, None))
        self._over.set()

    def _lose(self, method: str, rank: int) -> NoReturn:
        with self._lock:
            if self._lost is not None:
                raise self._lost
        child = self._children[rank]
        how = child.ended()
        raise self._set_lost(
            RankError(
                f"{self._named(child)} {how}{f' in {method}' if method else ''}{child.last_lines()}",
                fix="nothing: the trainer is started again and goes on from the newest checkpoint",
            )
        )

    def _fail_alone(self, method: str, failed: Mapping[int, RankFailed], answered: Collection[int]) -> NoReturn:
        silent = [child for child in self._children if child.rank not in answered]
        error = _error_of(next(iter(failed.values())))
        where = f"rank {' and '.join(map(str, failed))} of {len(self._children)} failed alone in {method}"
        if silent:
            waits = "; ".join(f"{self._named(each)}, {_state(each)}, did not answer" for each in silent)
            where += f"; {waits}"
        self._set_lost(RankError(f"{where}: {error}", fix="nothing: the trainer is started again"))
        if isinstance(error, RftdError):
            error.what = f"{error.what} ({where})"
        raise error

    def _give_up(self, method: str, answered: Collection[int]) -> NoReturn:
        silent = [child for child in self._children if child.rank not in answered]
        states = [f"{self._named(each)}, {_state(each)}" for each in silent]
        for each in silent:
            # Its last lines then say where it was: a rank writes them before it dies of this signal.
            each.process.send_signal(signal.SIGABRT)
        for each in silent:
            with suppress(subprocess.TimeoutExpired):
                each.process.wait(1.0)
        self._kill()
        lines = "".join(each.last_lines() for each in silent[:2])
        raise self._set_lost(
            RankError(
                f"{'; '.join(states)}: no answer to {method} within {self._timeout_s:g} s{lines}",
                field="trainer.engine_args.rank_timeout_s",
                fix="nothing if it hangs: the trainer is started again; a higher limit if it only needs longer",
            )
        )

    def _set_lost(self, error: RankError) -> RankError:
        with self._lock:
            if self._lost is None:
                self._lost = error
            error = self._lost
        self._kill()
        return error

    def _named(self, child: RankChild) -> str:
        return f"rank {child.rank} of {len(self._children)} (pid {child.process.pid})"

    def _end_all(self) -> None:
        deadline = time.monotonic() + _END_S
        for child in self._children:
            with suppress(subprocess.TimeoutExpired):
                child.process.wait(max(0.0, deadline - time.monotonic()))
        self._kill()

    def _kill(self) -> None:
        for child in self._children:
            if child.process.poll() is None:
                child.process.kill()
        for child in self._children:
            child.process.wait()
            child.reader.join(1.0)
            child.pipe.shut()
        self._over.set()


def _copy(process: subprocess.Popen[bytes], lines: collections.deque[str]) -> None:
    """Copies what a rank writes to standard error, which is the worker's log."""
    assert process.stdout is not None
    with process.stdout as output:
        for line in output:
            lines.append(line.decode(errors="replace").rstrip()[:_LINE_CHARACTERS])
            with suppress(OSError, ValueError):
                sys.stderr.write(line.decode(errors="replace"))
                sys.stderr.flush()


def _state(child: RankChild) -> str:
    try:
        return str(psutil.Process(child.process.pid).status())
    except psutil.Error:
        return "ended"


def _joint(failed: Sequence[RankFailed]) -> Exception:
    """The error of all ranks: that of the first, with what others say if that is something else."""
    first = failed[0]
    others = {each.what for each in failed} - {first.what}
    if others:
        first = RankFailed(
            kind=first.kind,
            what="; ".join([first.what, *sorted(others)]),
            where=first.where,
            field=first.field,
            fix=first.fix,
            errno=first.errno,
        )
    return _error_of(first)


def _error_of(failed: RankFailed) -> Exception:
    """The error that a rank raised, as it was where it is one of ours."""
    if failed.kind == "OSError":
        return OSError(failed.errno, failed.what)
    kinds = {kind.__name__: kind for kind in _tree(RftdError)}
    kind = kinds.get(failed.kind, RankError)
    return kind(failed.what, where=failed.where, field=failed.field, fix=failed.fix)


def _tree(kind: type[RftdError]) -> Iterator[type[RftdError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _tree(each)

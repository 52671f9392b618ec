"""`RankCrew`: all rank processes of an engine, on one node or several. A fault in one process ends all of them."""

from __future__ import annotations

import errno
import queue
import secrets
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, NoReturn

from rftd.ops.decoding import UNREADABLE
from rftd.ops.errors import RankError, RftdError
from rftd.workers.engines.ranks.child import END_S, RankChild, start_rank
from rftd.workers.engines.ranks.messages import CloseCall, RankAnswer, RankCall, RankDone, RankFailed, RankPart
from rftd.workers.engines.ranks.nodes import ONE_NODE, RankNodes

_GRACE_S: Final = 10.0
"""Seconds to wait for the other ranks once a rank has failed: they may be blocked in a collective with the failed rank.
"""


def _refuse_part(weights_part: RankPart) -> None:
    """Raises OSError: the default receiver of weight parts, for calls that request none."""
    raise OSError(errno.EPROTO, f"a rank sent an unrequested part of {weights_part.name}")


class RankCrew:
    """The processes of all ranks, each executing every call. Calls come from one thread; any thread may close or
    watch.
    """

    def __init__(self, ranks: int, *, timeout_s: float, nodes: RankNodes = ONE_NODE) -> None:
        """Starts the processes, equally many on each node. A call may take at most `timeout_s`.

        Raises OSError, or RankError if a node cannot start its ranks.
        """
        self._timeout_s = timeout_s
        self._answers: queue.SimpleQueue[tuple[int, RankAnswer | None]] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._loss: RankError | None = None
        self._ended_ranks: list[int] = []
        self._closing = False
        self._take_part: Callable[[RankPart], None] = _refuse_part
        self._children: list[RankChild] = []
        try:
            # A unique number for the crew's connections to a host, which may still have those of an earlier crew.
            number = secrets.token_hex(8)
            for rank in range(ranks):
                child = start_rank(rank, ranks, nodes, crew=number, timeout_s=timeout_s)
                self._children.append(child)
                threading.Thread(target=self._receive, args=(child,), name=f"rank-{rank}-answers", daemon=True).start()
        except BaseException:
            self._kill()
            raise

    def pids(self) -> list[int]:
        """Returns the process ids by rank, each valid on its own node."""
        return [child.pid for child in self._children]

    def call(
        self,
        calls: Sequence[RankCall] | RankCall,
        method: str,
        descriptors: Mapping[int, Sequence[int]] | None = None,
        take_part: Callable[[RankPart], None] = _refuse_part,
    ) -> list[RankDone]:
        """Executes one call on all ranks, or `calls[rank]` on each, and returns the answers by rank. `method` names the
        call in errors.

        Descriptors are sent only to ranks of this node. `take_part` receives the weights' parts sent by ranks of other
        nodes, from several threads; it may raise OSError. Raises the error common to all ranks. Any other fault ends
        all ranks: raises the error of a rank that failed alone, or RankError if a rank ended or did not answer in time.
        """
        if self._loss is not None:
            raise self._loss
        self._take_part = take_part
        for child in self._children:
            call = calls[child.rank] if isinstance(calls, Sequence) else calls
            files = (descriptors or {}).get(child.rank, ()) if child.takes_files else ()
            # An ended rank is detected below, by the end of its connection.
            with suppress(OSError):
                child.pipe.send(call, files)
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
            raise _joint_error(list(failed.values()))
        if failed:
            self._fail_alone(method, failed, answers.keys())
        if len(answers) < len(self._children):
            self._abandon(method, answers.keys())
        return [answer for _, answer in sorted(answers.items()) if isinstance(answer, RankDone)]

    def watch(self) -> None:
        """Blocks until `close`. Raises RankError as soon as a rank's process has ended."""
        self._stopped.wait()
        if self._ended_ranks and not self._closing:
            self._lose("", self._ended_ranks[0])

    def close(self) -> None:
        """Ends all ranks, and waits for them. Idempotent."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
        if self._loss is None:
            for child in self._children:
                with suppress(OSError):
                    child.pipe.send(CloseCall())
        self._end_all()

    def differ(self, error: RankError) -> NoReturn:
        """Ends all ranks, and raises `error`, which describes a difference between them."""
        raise self._set_lost(error)

    def _receive(self, child: RankChild) -> None:
        """Reads a rank's answers into the queue until the connection ends; parts of weights are passed on at once."""
        failed: RankFailed | None = None
        with suppress(*UNREADABLE):
            while (answer := child.pipe.receive_answer()) is not None:
                if not isinstance(answer, RankPart):
                    self._answers.put((child.rank, failed or answer))
                    failed = None
                elif failed is None:
                    # The rank continues sending, and its answer follows the last part.
                    failed = self._accept(answer)
        self._ended_ranks.append(child.rank)
        self._answers.put((child.rank, None))
        self._stopped.set()

    def _accept(self, weights_part: RankPart) -> RankFailed | None:
        """Passes on a part of weights to the caller; returns an OSError of the caller as a failure, else None."""
        try:
            self._take_part(weights_part)
        except OSError as error:
            return RankFailed(kind="OSError", what=error.strerror or str(error), errno=error.errno or errno.EIO)
        return None

    def _lose(self, method: str, rank: int) -> NoReturn:
        """Ends all ranks because one ended, and raises RankError with its last lines."""
        with self._lock:
            if self._loss is not None:
                raise self._loss
        child = self._children[rank]
        ending = child.ended()
        raise self._set_lost(
            RankError(
                f"{self._name_of(child)} {ending}{f' in {method}' if method else ''}{child.last_lines()}",
                fix="nothing: the trainer restarts from the newest checkpoint",
            )
        )

    def _fail_alone(self, method: str, failed: Mapping[int, RankFailed], answered: Collection[int]) -> NoReturn:
        """Ends all ranks because only some of them failed in a call, and raises the error."""
        silent = [child for child in self._children if child.rank not in answered]
        error = _error_of(next(iter(failed.values())))
        where = f"rank {' and '.join(map(str, failed))} of {len(self._children)} failed alone in {method}"
        if silent:
            waits = "; ".join(
                f"{self._name_of(silent_child)}, {silent_child.state()}, did not answer" for silent_child in silent
            )
            where += f"; {waits}"
        self._set_lost(RankError(f"{where}: {error}", fix="nothing: the trainer restarts"))
        if isinstance(error, RftdError):
            error.what = f"{error.what} ({where})"
        raise error

    def _abandon(self, method: str, answered: Collection[int]) -> NoReturn:
        """Ends all ranks because some did not answer in time, and raises the error with their stack traces."""
        silent = [child for child in self._children if child.rank not in answered]
        states = [f"{self._name_of(child)}, {child.state()}" for child in silent]
        for child in silent:
            # The last lines then have a stack trace: a rank writes it before dying of this signal.
            child.send_signal(signal.SIGABRT)
        for child in silent:
            child.wait(1.0)
        self._kill()
        lines = "".join(child.last_lines() for child in silent[:2])
        raise self._set_lost(
            RankError(
                f"{'; '.join(states)}: no answer to {method} within {self._timeout_s:g} s{lines}",
                field="trainer.engine_args.rank_timeout_s",
                fix="nothing if it hangs: the trainer restarts; a higher limit if the call only takes longer",
            )
        )

    def _set_lost(self, error: RankError) -> RankError:
        """Records the first loss of a rank and kills all ranks; returns the first loss's error."""
        with self._lock:
            if self._loss is None:
                self._loss = error
            error = self._loss
        self._kill()
        return error

    def _name_of(self, child: RankChild) -> str:
        """Returns number and machine of a rank, for a message."""
        return f"rank {child.rank} of {len(self._children)} ({child.where})"

    def _end_all(self) -> None:
        """Waits for the end of all ranks, and kills the remaining ones."""
        deadline = time.monotonic() + END_S
        for child in self._children:
            child.wait(max(0.0, deadline - time.monotonic()))
        self._kill()

    def _kill(self) -> None:
        """Kills all ranks and closes their connections."""
        for child in self._children:
            child.send_signal(signal.SIGKILL)
        for child in self._children:
            child.close()
        self._stopped.set()


def _joint_error(failed: Sequence[RankFailed]) -> Exception:
    """Returns the error raised when all ranks failed: the first rank's, with differing texts of the other ranks
    appended.
    """
    first = failed[0]
    further_texts = {failure.what for failure in failed} - {first.what}
    if further_texts:
        first = RankFailed(
            kind=first.kind,
            what="; ".join([first.what, *sorted(further_texts)]),
            where=first.where,
            field=first.field,
            fix=first.fix,
            errno=first.errno,
        )
    return _error_of(first)


def _error_of(failed: RankFailed) -> Exception:
    """Returns the error raised by a rank, with its original class if that is one of this project."""
    if failed.kind == "OSError":
        return OSError(failed.errno, failed.what)
    kinds = {kind.__name__: kind for kind in _with_subclasses(RftdError)}
    kind = kinds.get(failed.kind, RankError)
    return kind(failed.what, where=failed.where, field=failed.field, fix=failed.fix)


def _with_subclasses(kind: type[RftdError]) -> Iterator[type[RftdError]]:
    """Yields an error class and all its subclasses."""
    yield kind
    for subclass in kind.__subclasses__():
        yield from _with_subclasses(subclass)

"""`RankCrew`: the processes of an engine, on one node or several. Whatever one of them does wrong is the end of all."""

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
from rftd.workers.engines.ranks.child import END_S, RankChild, started
from rftd.workers.engines.ranks.messages import CloseCall, RankAnswer, RankCall, RankDone, RankFailed, RankPart
from rftd.workers.engines.ranks.nodes import ONE_NODE, RankNodes

_GRACE_S: Final = 10.0
"""The wait for the others once a rank has failed: they may wait for it in a collective, and will not answer."""


def _untaken(part: RankPart) -> None:
    raise OSError(errno.EPROTO, f"a rank sent a part of {part.name}, and nobody had asked for one")


class RankCrew:
    """N processes, each of which carries out every call. One thread calls; any may close or watch."""

    def __init__(self, ranks: int, *, timeout_s: float, nodes: RankNodes = ONE_NODE) -> None:
        """Starts them, as many on each node. `timeout_s` is the longest that a call may take.

        Raises OSError, or RankError if the nodes cannot have them.
        """
        self._timeout_s = timeout_s
        self._answers: queue.SimpleQueue[tuple[int, RankAnswer | None]] = queue.SimpleQueue()
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._lost: RankError | None = None
        self._gone: list[int] = []
        self._closing = False
        self._take_part: Callable[[RankPart], None] = _untaken
        self._children: list[RankChild] = []
        try:
            # A number for its connections to a host, which may have those of a crew before.
            number = secrets.token_hex(8)
            for rank in range(ranks):
                child = started(rank, ranks, nodes, crew=number, timeout_s=timeout_s)
                self._children.append(child)
                threading.Thread(target=self._receive, args=(child,), name=f"rank-{rank}-answers", daemon=True).start()
        except BaseException:
            self._kill()
            raise

    def pids(self) -> list[int]:
        """The processes, by rank; each number is of its own node."""
        return [each.pid for each in self._children]

    def call(
        self,
        calls: Sequence[RankCall] | RankCall,
        method: str,
        descriptors: Mapping[int, Sequence[int]] | None = None,
        take_part: Callable[[RankPart], None] = _untaken,
    ) -> list[RankDone]:
        """Has all ranks carry out a call, or each its own; returns their answers by rank. `method` is for messages.

        Descriptors go to ranks of this node alone. `take_part` is called with the parts that others send before their
        answer, from several threads; it may raise OSError.

        Raises what all ranks raised. Whatever else goes wrong is the end of all of them: the error of the rank that
        raised it alone, or RankError if one ended or none answered in time.
        """
        if self._lost is not None:
            raise self._lost
        self._take_part = take_part
        for child in self._children:
            call = calls[child.rank] if isinstance(calls, Sequence) else calls
            files = (descriptors or {}).get(child.rank, ()) if child.takes_files else ()
            # One that has ended is found below, by the end of its connection.
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

    def _receive(self, child: RankChild) -> None:
        failed: RankFailed | None = None
        with suppress(*UNREADABLE):
            while (answer := child.pipe.receive_answer()) is not None:
                if not isinstance(answer, RankPart):
                    self._answers.put((child.rank, failed or answer))
                    failed = None
                elif failed is None:
                    # The rank goes on sending, and its answer comes after the last part.
                    failed = self._taken(answer)
        self._gone.append(child.rank)
        self._answers.put((child.rank, None))
        self._over.set()

    def _taken(self, part: RankPart) -> RankFailed | None:
        try:
            self._take_part(part)
        except OSError as error:
            return RankFailed(kind="OSError", what=error.strerror or str(error), errno=error.errno or errno.EIO)
        return None

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
            waits = "; ".join(f"{self._named(each)}, {each.state()}, did not answer" for each in silent)
            where += f"; {waits}"
        self._set_lost(RankError(f"{where}: {error}", fix="nothing: the trainer is started again"))
        if isinstance(error, RftdError):
            error.what = f"{error.what} ({where})"
        raise error

    def _give_up(self, method: str, answered: Collection[int]) -> NoReturn:
        silent = [child for child in self._children if child.rank not in answered]
        states = [f"{self._named(each)}, {each.state()}" for each in silent]
        for each in silent:
            # Its last lines then say where it was: a rank writes them before it dies of this signal.
            each.send_signal(signal.SIGABRT)
        for each in silent:
            each.wait(1.0)
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
        return f"rank {child.rank} of {len(self._children)} ({child.where})"

    def _end_all(self) -> None:
        deadline = time.monotonic() + END_S
        for child in self._children:
            child.wait(max(0.0, deadline - time.monotonic()))
        self._kill()

    def _kill(self) -> None:
        for child in self._children:
            child.send_signal(signal.SIGKILL)
        for child in self._children:
            child.close()
        self._over.set()


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

"""`WriterThread`, the one thread owning the store: commits the queued appends as one group, then acknowledges."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from queue import Empty, SimpleQueue

from rftd.ops import limits
from rftd.ops.errors import RftdError
from rftd.streams.log.admission import QueuedAppend, Room
from rftd.streams.log.chain import Heads
from rftd.streams.log.envelope import Draft, Position
from rftd.streams.log.tail import Tail
from rftd.streams.log.topics import Partition
from rftd.streams.sqlite.errors import translate
from rftd.streams.sqlite.gil_yield import GilYield
from rftd.streams.sqlite.heads_file import HeadsFile
from rftd.streams.sqlite.store import Commit, Store


class _Task:
    """Work for the writing thread other than an append, executed in the order of the queue."""

    __slots__ = ("after", "done", "work")

    def __init__(self, work: Callable[[], int], after: Callable[[], None], done: asyncio.Future[int]) -> None:
        """Creates the work; `done` receives its result on the event loop."""
        self.work = work
        """Function called on the thread; its number is the result."""
        self.after = after
        """Function called on the event loop after the work succeeded."""
        self.done = done
        """Receiver of the result or the error of `work`, on the event loop."""


_Job = QueuedAppend | _Task | None
"""Work for the writing thread; None ends the thread."""


class WriterThread:
    """The one thread that writes the store: commits queued appends as one transaction, up to the limits of a group in
    records and bytes, and wakes the event loop once per commit.
    """

    def __init__(
        self, store: Store, heads_file: HeadsFile, tail: Tail, gil_yield: GilYield, point: Callable[[str], None]
    ) -> None:
        """Starts the thread; to be called on the event loop of all later calls.

        `point` is called at named moments, for tests of crashes; inside of `gil_yield` a saturated loop lets the
        thread run.
        """
        self._store = store
        self._heads_file = heads_file
        self._heads = store.heads
        """Heads of all partitions as of the last commit, written to the heads file."""
        self._unpublished: Heads = {}
        """Heads that were committed but not passed on to followers, because a later step failed."""
        self._tail = tail
        self._gil_yield = gil_yield
        self._point = point
        self._loop = asyncio.get_running_loop()
        self._room = Room(limits.APPEND_QUEUE_RECORDS, limits.APPEND_QUEUE_SIZE_BYTES)
        """Free capacity for appends not acknowledged yet."""
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        """Jobs passed from the event loop to the thread."""
        self._next_jobs: list[_Job] = []
        """At most one job, other than an append, met while a group was gathered, to be taken after the group."""
        self._under_way = 0
        """Number of calls of `append` that have not returned."""
        self._idle = asyncio.Event()
        """Set when the last call of `append` returns, for `close`."""
        self._failure: RftdError | None = None
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> RftdError | None:
        """Error of the last commit; None while commits succeed."""
        return self._failure

    async def append(self, drafts: Sequence[Draft], size_bytes: int) -> list[Position]:
        """Appends the drafts and returns their positions once they are durable; waits while the queue is full."""
        self._under_way += 1
        try:
            await self._room.reserve(len(drafts), size_bytes)
            acknowledged: asyncio.Future[list[Position]] = self._loop.create_future()
            self._jobs.put(QueuedAppend(drafts, size_bytes, acknowledged))
            with self._gil_yield:
                return await acknowledged
        finally:
            self._under_way -= 1
            if self._under_way == 0:
                self._idle.set()

    async def truncate(self, partition: Partition, before_offset: int) -> None:
        """Deletes the records below `before_offset` from the file and the newest records in memory."""

        def truncate() -> int:
            self._store.truncate(partition, before_offset)
            return 0

        await self._do(truncate, lambda: self._tail.forget(partition, before_offset))

    async def rewrite(self, partition: Partition, values: Mapping[int, bytes], *, thin: bool) -> None:
        """Replaces records' values in the file, and drops those records from memory; see `Store.rewrite`."""

        def rewrite() -> int:
            self._store.rewrite(partition, values, thin=thin)
            return 0

        await self._do(rewrite, lambda: self._tail.drop(partition, values))

    async def give_back(self) -> int:
        """Returns some unused pages to the file system; returns the number of unused pages left in the file."""
        return await self._do(self._store.give_back, lambda: None)

    async def _do(self, work: Callable[[], int], after: Callable[[], None]) -> int:
        """Executes `work` on the thread, then `after` on the event loop; returns or raises the outcome of `work`."""
        done: asyncio.Future[int] = self._loop.create_future()
        self._jobs.put(_Task(work, after, done))
        with self._gil_yield:
            return await done

    async def close(self) -> None:
        """Writes everything queued, and ends the thread."""
        while self._under_way:
            self._idle.clear()
            await self._idle.wait()
        self._jobs.put(None)  # after the last append: jobs run in their order, so none is left behind the end mark
        # In an executor: joining here would keep the loop from running the thread's last deliveries.
        await self._loop.run_in_executor(None, self._thread.join)

    def _run(self) -> None:
        """Executes the queued jobs until the end mark, neighbouring appends as one group; on the thread.

        The store is settled after each job, and without jobs every `retry_s` seconds while the write-ahead log is
        large.
        """
        while True:
            try:
                job = self._next_jobs.pop() if self._next_jobs else self._jobs.get(timeout=self._store.wal.retry_s)
            except Empty:
                self._store.settle()
                continue
            if job is None:
                return
            if isinstance(job, _Task):
                self._perform(job)
            else:
                self._commit(self._group(job))
            self._store.settle()  # after the acknowledgement: it delays the next commit only

    def _group(self, first: QueuedAppend) -> list[QueuedAppend]:
        """Returns the first append and the ones queued behind it, up to the limits of one transaction."""
        # No wait for a group to fill: the appends queued during the last sync are the next group, so groups grow with
        # the load and a lone append is not delayed.
        group = [first]
        records = len(first.drafts)
        size = first.size_bytes
        while records < limits.GROUP_COMMIT_RECORDS and size < limits.GROUP_COMMIT_SIZE_BYTES:
            try:
                job = self._jobs.get_nowait()
            except Empty:
                break
            if not isinstance(job, QueuedAppend):
                self._next_jobs.append(job)
                break
            group.append(job)
            records += len(job.drafts)
            size += job.size_bytes
        return group

    def _commit(self, group: list[QueuedAppend]) -> None:
        """Commits a group of appends, and passes the outcome to the event loop."""
        drafts = group[0].drafts if len(group) == 1 else [draft for append in group for draft in append.drafts]
        commit: Commit | None = None
        error: RftdError | None = None
        try:
            commit = self._store.commit(drafts)
            if commit.heads:
                self._heads.update(commit.heads)
                self._unpublished.update(commit.heads)
                # After the commit, or the file could remember records never landed and every start would refuse; before
                # the acknowledgement, or a lost record could go unnoticed.
                self._heads_file.write(self._heads)
            self._point("log.before_ack")
        except Exception as failure:  # the thread must live, or every producer waits for ever
            error = translate(failure, "log writer")
        moved: Heads = {}
        if error is None:
            moved = self._unpublished
            self._unpublished = {}  # a new dict: the loop reads the old one while this thread continues
        self._to_loop(self._deliver, group, commit, moved, error)

    def _deliver(self, group: list[QueuedAppend], commit: Commit | None, moved: Heads, error: RftdError | None) -> None:
        """Passes new records to followers, then acknowledges or fails the appends of a group; on the event loop."""
        self._failure = error
        # Followers first: an acknowledged producer reading at once finds its records.
        if commit is not None and error is None:
            self._tail.advance(commit.records, moved)
        start = 0
        for append in group:
            end = start + len(append.drafts)
            self._room.release(len(append.drafts), append.size_bytes)
            if append.acknowledged.done():  # its producer was cancelled
                pass
            elif error is not None:
                # One error each: a shared one would gather the traceback of every producer raising it.
                append.acknowledged.set_exception(type(error)(error.what, where=error.where, fix=error.fix))
            elif commit is not None:
                append.acknowledged.set_result(commit.positions[start:end])
            start = end

    def _perform(self, job: _Task) -> None:
        """Executes a job other than an append, and passes its result or error to the event loop; on the thread."""
        error: RftdError | None = None
        count = 0
        try:
            count = job.work()
        except Exception as failure:  # the thread must live, or every producer waits for ever
            error = translate(failure, "log writer")
        self._to_loop(self._performed, job, count, error)

    def _performed(self, job: _Task, count: int, error: RftdError | None) -> None:
        """Calls `after` of a job that succeeded, and passes result or error to the waiter; on the event loop."""
        if error is None:
            job.after()
        if not job.done.done():
            if error is None:
                job.done.set_result(count)
            else:
                job.done.set_exception(error)

    def _to_loop(self, callback: Callable[..., None], *arguments: object) -> None:
        """Calls a function on the event loop; does nothing if the loop has ended."""
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:  # the loop ended without closing the log, and its producers with it
            return

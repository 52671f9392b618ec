"""Log lines of an experiment's workers, merged by time, or of the daemon. Reading files blocks, and is done in a
thread.

Workers write one JSON object per line to `JOB_DIR/log/ROLE[_SLOT].log`, or to `JOB_DIR/log/NODE/ROLE[_SLOT].log` on a
cluster if the experiment is configured so; a line without JSON (a library's message, a traceback) gets the time and the
level of the previous line. Workflows and rewards may print anything, including a model's answer that looks like a log
line: the lines of one file keep their order, whatever times they claim, and none is in the future. Secrets are masked
once more: a library may print one. The daemon's own file is `daemon.log` in its folder, with its predecessor in
`daemon.log.1`.
"""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

from rftd.daemon.http.views.route import Daemon, Name, read, time_of
from rftd.ops.clock import time_ns_of
from rftd.ops.decoding import json_decoder
from rftd.ops.errors import UsageError
from rftd.ops.log_file import older_of
from rftd.ops.logs import FIRST
from rftd.ops.redaction import mask_text, redact
from rftd.storage.queries.experiments import job_dir_of

TAIL_SIZE_BYTES: Final = 4 * 1024 * 1024
"""Maximum number of bytes read from one file at once."""
# Every slot and the trainer, with room for files put there by others.
FILES: Final = 64
"""Maximum number of log files read for a page."""
LINE_CHARS: Final = 16_384
"""Maximum number of characters read of one line."""
BEFORE_SIZE_BYTES: Final = 64 * 1024
"""Bytes searched backwards for the line before a page's first line."""
PATTERN_CHARS: Final = 500
"""Maximum number of characters in the text searched for."""
_OLDER: Final = ".log.1"
"""Ending of the predecessor of a log file begun anew."""
SKEW_NS: Final = 60 * 10**9
"""Maximum lead of a line's time over the last write to its file: clocks of a node and of a file server differ."""

LogRole = Literal["explorer", "trainer"]
"""Role of a worker with log files."""
LogLevel = Literal["debug", "info", "warning", "error"]
"""Lowest level of lines in a request."""
LEVELS: Final = ("debug", "info", "warning", "error", "critical")
"""Levels of log lines, the lowest first."""


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """One log line of a worker or the daemon, parsed and with secrets masked."""

    file: str
    """Path of the file, below the folder of logs."""
    role: str
    """Role of the writer."""
    slot: int | None
    """Slot of the worker; null without one."""
    time: str
    """Time in ISO-8601 UTC; for a line without one, or with a future one, the previous line's, empty if none."""
    level: str
    """Level; for a line without one, the previous line's, empty if none."""
    event: str
    """Name of the event, or the whole text of a line without JSON."""
    fields: dict[str, Any] = {}
    """Further fields of the line, by name."""


class LogPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some lines, oldest first, with the offsets for reading on."""

    items: list[LogLine]
    """Lines of the page, oldest first."""
    next: dict[str, int]
    """Offset read so far in each file, in bytes: `after` of the next page."""


class _PlacedLine(NamedTuple):
    """A line with its trace and its position in time."""

    line: LogLine
    """The parsed line."""
    trace_id: str = ""
    """Id of the line's trace."""
    at_ns: int = 0
    """Position in time: at least the previous line's, since a file is in the order of writing."""


class LogFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions on log lines; None: no condition."""

    role: str | None = None
    """Role of the writer, or role named by a line of the daemon."""
    level: str | None = None
    """Lowest level; lines with an unknown level pass."""
    pattern: str | None = None
    """Text contained in the printed line."""
    since_ns: int | None = None
    """Earliest position in time, Unix time in nanoseconds."""
    trace_id: str | None = None
    """Id of the trace."""

    def wants(self, parsed: _PlacedLine) -> bool:
        """True if the line passes every condition of the filter."""
        line = parsed.line
        if self.trace_id is not None and parsed.trace_id != self.trace_id:
            return False
        if self.level is not None and line.level in LEVELS and LEVELS.index(line.level) < LEVELS.index(self.level):
            return False
        if self.since_ns is not None and parsed.at_ns < self.since_ns:
            return False
        # Every line of a worker's file is the worker's own; the daemon's lines name the role they concern.
        if self.role is not None and line.role != self.role and line.fields.get("role") != self.role:
            return False
        # Last, because it formats the line as text.
        return self.pattern is None or self.pattern in text_of(line)


EVERY: Final = LogFilter()
"""Filter without conditions."""


_Lines = Annotated[int, Meta(ge=1, le=10_000, description="Maximum number of lines; the newest are returned.")]
"""Maximum number of lines in a request."""
_Role = Annotated[LogRole | None, Meta(description="Only lines of this role.")]
"""Role of the wanted lines in a request."""
_Level = Annotated[LogLevel | None, Meta(description="Only lines of this level and above.")]
"""Lowest level of the wanted lines in a request."""
_Text = Annotated[
    str | None, Meta(description="Only lines with this text, as they are printed.", max_length=PATTERN_CHARS)
]
"""Text searched for in a request."""
_Since = Annotated[
    str | None, Meta(description="Only lines from this time on, in ISO 8601 with a zone.", max_length=100)
]
"""Earliest time in a request."""
_Trace = Annotated[
    str | None, Meta(description="Only lines that were written within this trace.", pattern="^[0-9a-f]{32}$")
]
"""Id of the trace of the wanted lines in a request."""
_Next = Annotated[str | None, Meta(description="`next` of an earlier page, as JSON.", max_length=8192)]
"""Offsets of an earlier page in a request, as JSON."""


@read("/v1/logs", LogPage, tag="logs")
async def daemon_logs(
    daemon: Daemon,
    n: _Lines = 100,
    role: _Role = None,
    level: _Level = None,
    grep: _Text = None,
    since: _Since = None,
    trace: _Trace = None,
    after: _Next = None,
) -> LogPage:
    """Log lines of the daemon itself, from the last 4 MiB of its file, or after the offset `after`."""
    conditions = LogFilter(role=role, level=level, pattern=grep, since_ns=time_of(since, "since"), trace_id=trace)
    if daemon.daemon_log is None:
        return LogPage(items=[], next={})
    return await asyncio.to_thread(of_daemon, daemon.daemon_log, lines=n, conditions=conditions, after=after)


@read("/v1/experiments/{name}/logs", LogPage, tag="logs")
async def logs(
    daemon: Daemon,
    name: Name,
    n: _Lines = 100,
    role: _Role = None,
    level: _Level = None,
    grep: _Text = None,
    since: _Since = None,
    trace: _Trace = None,
    after: _Next = None,
) -> LogPage:
    """Log lines of all workers, merged by time, from the last 4 MiB of each file, or after the offsets `after`."""
    conditions = LogFilter(role=role, level=level, pattern=grep, since_ns=time_of(since, "since"), trace_id=trace)
    id = await daemon.find(name)
    async with daemon.read() as connection:
        folder = Path(await job_dir_of(connection, id)) / "log"
    if after is None:
        return await asyncio.to_thread(tail, folder, lines=n, conditions=conditions)
    return await asyncio.to_thread(following, folder, _offsets_of(after), conditions=conditions)


def of_daemon(file: Path, *, lines: int, conditions: LogFilter = EVERY, after: str | None = None) -> LogPage:
    """Returns the last matching lines of the daemon's file and its predecessor, or those after a page's offset."""
    if after is not None:
        return _merged(file.parent, [file.name], _offsets_of(after), conditions)
    page = _merged(file.parent, [older_of(file).name, file.name], None, conditions)
    # The older file grows no more: new lines are appended to the newer one.
    return LogPage(items=page.items[-lines:], next={name: page.next[name] for name in (file.name,)})


def tail(folder: Path, *, lines: int, conditions: LogFilter = EVERY) -> LogPage:
    """Returns the last matching lines of all files together, by time."""
    page = _page(folder, None, conditions)
    return LogPage(items=page.items[-lines:], next=page.next)


def following(folder: Path, offsets: Mapping[str, int], *, conditions: LogFilter = EVERY) -> LogPage:
    """Returns the matching lines written after an earlier page's offsets."""
    return _page(folder, offsets, conditions)


def _page(folder: Path, offsets: Mapping[str, int] | None, conditions: LogFilter) -> LogPage:
    """Returns the matching lines behind the offsets, or the newest part of all files without offsets, predecessors
    included.
    """
    names = [str(path.relative_to(folder)) for path in _files(folder, conditions.role)]
    if offsets is not None:
        return _merged(folder, names, offsets, conditions)
    # A file above the size limit was begun anew; its predecessor grows no more.
    both = [file_name for name in names for file_name in (str(older_of(Path(name))), name)]
    page = _merged(folder, both, None, conditions)
    return LogPage(items=page.items, next={name: page.next[name] for name in names})


def _merged(folder: Path, names: Iterable[str], offsets: Mapping[str, int] | None, conditions: LogFilter) -> LogPage:
    """Returns the matching lines of several files in the order of time, with the offset reached in each file."""
    matching: list[_PlacedLine] = []
    reached: dict[str, int] = {}
    before = ""
    for name in names:
        file_part = _read(folder / name, None if offsets is None else offsets.get(name, 0))
        reached[name] = file_part.end
        # The first lines of a file may continue the last lines of its predecessor.
        if not file_part.before:
            file_part = file_part._replace(before=before)
        before = file_part.text[-BEFORE_SIZE_BYTES:] if name.endswith(_OLDER) else ""
        matching += [parsed for parsed in _parse(name, file_part) if conditions.wants(parsed)]
    matching.sort(key=lambda parsed: parsed.at_ns)
    return LogPage(items=[parsed.line for parsed in matching], next=reached)


def text_of(line: LogLine, *, local: bool = False) -> str:
    """Returns the printed form of a line: one line without terminal control characters; in `local` time, or in UTC."""
    owner = line.role if line.slot is None else f"{line.role}:{line.slot}"
    # In one order for all releases.
    first = {key: line.fields[key] for key in FIRST if key in line.fields}
    fields = " ".join(f"{_printable(key)}={_value(field_text)}" for key, field_text in (first | line.fields).items())
    time = _local(line.time) if local else _printable(line.time)
    start = f"{time or '-':<24}  {_printable(owner):<11}  {_printable(line.level) or '-':<7}"
    return f"{start}  {_printable(line.event)}  {fields}".rstrip()


def _local(text: str) -> str:
    """Returns the time by this machine's clock and zone; unchanged if it is no time."""
    time_ns = _time_ns(text)
    if time_ns is None:
        return _printable(text)
    return datetime.fromtimestamp(time_ns / 1e9).astimezone().isoformat(timespec="milliseconds")


def _value(field_content: Any) -> str:
    """Returns a field of a line as printable text, JSON unless a text already."""
    return _printable(
        field_content if isinstance(field_content, str) else json.dumps(field_content, ensure_ascii=False)
    )


def _printable(text: str) -> str:
    """Returns a text with line feeds and control characters escaped, on a single line."""
    # The text may come from a reward, a workflow or an answer: a line feed would begin a new line.
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else repr(character)[1:-1] for character in text.replace("\t", "  ")
    )


def _files(folder: Path, role: str | None) -> Iterable[Path]:
    """Returns the log files, also those in folders of nodes."""
    try:
        folder_entries = list(os.scandir(folder))
        # Not through a link, as with the files.
        nodes = [folder_entry for folder_entry in folder_entries if folder_entry.is_dir(follow_symlinks=False)]
        names = [folder_entry.name for folder_entry in folder_entries if folder_entry.name.endswith(".log")]
        names += [
            f"{node.name}/{node_entry.name}"
            for node in nodes
            for node_entry in os.scandir(node)
            if node_entry.name.endswith(".log")
        ]
    except OSError:
        return []
    chosen = [name for name in sorted(names) if role is None or _owner(name)[0] == role]
    return [folder / name for name in chosen[:FILES]]


class _FilePart(NamedTuple):
    """A part of a log file."""

    text: str = ""
    """The part's whole lines."""
    before: str = ""
    """The lines just before the part."""
    end: int = 0
    """Offset of the next part."""
    written_ns: int = 0
    """Time of the last write to the file."""


def _read(path: Path, start: int | None) -> _FilePart:
    """Returns whole lines from `start` on; without `start`, the last ones."""
    try:
        # Not through a link: the folder is the user's, the reader is the daemon. O_NONBLOCK, because opening a pipe
        # would otherwise wait for a writer forever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return _FilePart(end=start or 0)
    with open(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            return _FilePart(end=start or 0)
        # An offset beyond the end means a file replaced by a shorter one: its end is read as if for the first time.
        begin = max(0, status.st_size - TAIL_SIZE_BYTES) if start is None or start > status.st_size else start
        file.seek(begin)
        read_bytes = file.read(TAIL_SIZE_BYTES)
        file.seek(max(0, begin - BEFORE_SIZE_BYTES))
        before = file.read(begin - file.tell()) if read_bytes else b""
    if start is None and begin > 0:
        skipped = read_bytes.find(b"\n") + 1
        begin = begin + skipped
        before += read_bytes[:skipped]
        read_bytes = read_bytes[skipped:]
    # An unfinished line waits for its end; a line longer than a whole read does not.
    whole = read_bytes.rfind(b"\n") + 1 or (len(read_bytes) if len(read_bytes) == TAIL_SIZE_BYTES else 0)
    return _FilePart(
        read_bytes[:whole].decode("utf-8", "replace"),
        before.decode("utf-8", "replace"),
        begin + whole,
        status.st_mtime_ns,
    )


def _parse(name: str, file_part: _FilePart) -> Iterator[_PlacedLine]:
    """Yields the lines of a part; its first lines may continue the last line before."""
    role, slot = _owner(name)
    time = level = trace_id = ""
    at_ns = 0
    for last in _parse(name, file_part._replace(text=file_part.before, before="")) if file_part.before else ():
        time = last.line.time
        level = last.line.level
        trace_id = last.trace_id
        at_ns = last.at_ns
    for raw in file_part.text.splitlines():
        line = raw[:LINE_CHARS]
        try:
            fields = msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError):
            fields = None
        if isinstance(fields, dict):
            masked = {
                key: mask_text(field_text) if isinstance(field_text, str) else field_text
                for key, field_text in redact(fields).items()
            }
            claimed_ns = _time_ns(str(masked.get("time")))
            if claimed_ns is not None and claimed_ns <= file_part.written_ns + SKEW_NS:
                time = str(masked.pop("time"))
                at_ns = max(at_ns, claimed_ns)
            level = str(masked.pop("level", level))
            event = str(masked.pop("event", ""))
            trace_id = str(masked.get("trace_id", ""))
            log_line = LogLine(file=name, role=role, slot=slot, time=time, level=level, event=event, fields=masked)
            yield _PlacedLine(log_line, trace_id, at_ns)
        elif line.strip():
            log_line = LogLine(file=name, role=role, slot=slot, time=time, level=level, event=mask_text(line))
            yield _PlacedLine(log_line, trace_id, at_ns)


def _owner(name: str) -> tuple[str, int | None]:
    """Returns role and slot of a log file by its name; the whole stem and None for a file without a slot."""
    stem = name.rpartition("/")[2].removesuffix(".1").removesuffix(".log")
    role, _, slot = stem.rpartition("_")
    return (role, int(slot)) if role and slot.isdigit() else (stem, None)


def _time_ns(text: str) -> int | None:
    """Returns the Unix time in nanoseconds of a text; None for an unreadable text."""
    try:
        return time_ns_of(text)
    except (ValueError, OverflowError):
        return None


def _offsets_of(text: str) -> dict[str, int]:
    """Returns the byte offsets of log files from JSON. Raises UsageError for anything else or a negative offset."""
    try:
        offsets = json_decoder(dict[str, int]).decode(text)
    except (msgspec.DecodeError, RecursionError):
        offsets = {"": -1}
    if any(offset < 0 for offset in offsets.values()):
        raise UsageError("no place in log files", field="after", fix="use `next` of an earlier page, as JSON")
    return offsets

"""Log lines of an experiment's workers, merged by time, or of the daemon. Reading files blocks: it is done in a thread.

Workers write one JSON object a line to `JOB_DIR/log/ROLE[_SLOT].log`, or to `JOB_DIR/log/NODE/ROLE[_SLOT].log` on a
cluster if the experiment asks for it; what is not JSON (a library's message, a traceback) has the time and the level of
the line before it. Workflows and rewards may print anything, also an answer of the model that looks like such a line:
the lines of one file keep their order, whatever times they claim, and none is of the future. Secrets are masked once
more: a library may print one. The daemon's own file is `daemon.log` in its folder, and `daemon.log.1` the one before
it.
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

from rftd.daemon.http.views.route import Daemon, Name, read
from rftd.ops.clock import time_ns_of
from rftd.ops.decoding import json_decoder
from rftd.ops.errors import UsageError
from rftd.ops.log_file import older_of
from rftd.ops.logs import FIRST
from rftd.ops.redaction import mask_text, redact
from rftd.storage.queries.experiments import job_dir_of

TAIL_SIZE_BYTES: Final = 4 * 1024 * 1024
"""The most that is read of one file at once."""
# Every slot and the trainer, with room for files that somebody else puts there.
FILES: Final = 64
LINE_CHARS: Final = 16_384
BEFORE_SIZE_BYTES: Final = 64 * 1024
"""How far back the line is looked for to which the first line of a page belongs."""
PATTERN_CHARS: Final = 500
_OLDER: Final = ".log.1"
SKEW_NS: Final = 60 * 10**9
"""A line may be this much later than the last write to its file: clocks of a node and of a file server differ."""

LogRole = Literal["explorer", "trainer"]
LogLevel = Literal["debug", "info", "warning", "error"]
LEVELS: Final = ("debug", "info", "warning", "error", "critical")


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line."""

    file: str
    role: str
    slot: int | None
    time: str
    """ISO-8601 UTC; of a line that has none, or one yet to come, the time of the line before it, empty if none was."""
    level: str
    """Of a line that has none, the level of the line before it; empty if no line with a level came before."""
    event: str
    """The name of the event, or the whole text of a line that is not JSON."""
    fields: dict[str, Any] = {}


class LogPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some lines, oldest first."""

    items: list[LogLine]
    next: dict[str, int]
    """The place to which each file was read, in bytes: `after` of the next page."""


class _Parsed(NamedTuple):
    """A line with what places it."""

    line: LogLine
    trace_id: str = ""
    """The trace that it belongs to."""
    at_ns: int = 0
    """Its place in time: that of the line before it at least, for a file is in the order in which it was written."""


class LogFilter(msgspec.Struct, frozen=True, kw_only=True):
    """The lines that are wanted; what is None bounds nothing."""

    role: str | None = None
    level: str | None = None
    """This level and above; a line whose level is not known is wanted."""
    pattern: str | None = None
    """Text that the line has, as it is printed."""
    since_ns: int | None = None
    trace_id: str | None = None

    def wants(self, parsed: _Parsed) -> bool:
        """True if a page shows this line."""
        line = parsed.line
        if self.trace_id is not None and parsed.trace_id != self.trace_id:
            return False
        if self.level is not None and line.level in LEVELS and LEVELS.index(line.level) < LEVELS.index(self.level):
            return False
        if self.since_ns is not None and parsed.at_ns < self.since_ns:
            return False
        # Of a worker's file all lines are its own; the daemon's say of whom they tell.
        if self.role is not None and line.role != self.role and line.fields.get("role") != self.role:
            return False
        # Last, for it writes the line as text.
        return self.pattern is None or self.pattern in text_of(line)


EVERY: Final = LogFilter()


_Lines = Annotated[int, Meta(ge=1, le=10_000, description="The last so many of the wanted lines.")]
_Role = Annotated[LogRole | None, Meta(description="Only lines of this role.")]
_Level = Annotated[LogLevel | None, Meta(description="Only lines of this level and above.")]
_Text = Annotated[
    str | None, Meta(description="Only lines with this text, as they are printed.", max_length=PATTERN_CHARS)
]
_Since = Annotated[
    str | None, Meta(description="Only lines from this time on, in ISO 8601 with a zone.", max_length=100)
]
_Trace = Annotated[
    str | None, Meta(description="Only lines that were written within this trace.", pattern="^[0-9a-f]{32}$")
]
_Next = Annotated[str | None, Meta(description="`next` of an earlier page, as JSON.", max_length=8192)]


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
    """Log lines of the daemon itself, from the last 4 MiB of its file, or from what follows `after`."""
    wanted = LogFilter(role=role, level=level, pattern=grep, since_ns=_since_ns(since), trace_id=trace)
    if daemon.daemon_log is None:
        return LogPage(items=[], next={})
    return await asyncio.to_thread(of_daemon, daemon.daemon_log, lines=n, wanted=wanted, after=after)


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
    """Log lines of all workers, merged by time, from the last 4 MiB of each file, or from what follows `after`."""
    wanted = LogFilter(role=role, level=level, pattern=grep, since_ns=_since_ns(since), trace_id=trace)
    id = await daemon.find(name)
    async with daemon.read() as connection:
        folder = Path(await job_dir_of(connection, id)) / "log"
    if after is None:
        return await asyncio.to_thread(tail, folder, lines=n, wanted=wanted)
    return await asyncio.to_thread(following, folder, _places(after), wanted=wanted)


def of_daemon(file: Path, *, lines: int, wanted: LogFilter = EVERY, after: str | None = None) -> LogPage:
    """The last wanted lines of the daemon's file and of the one before it, or those after the place of a page."""
    if after is not None:
        return _merged(file.parent, [file.name], _places(after), wanted)
    page = _merged(file.parent, [older_of(file).name, file.name], None, wanted)
    # Of the older file no more will be read: what is added to the log is added to the newer one.
    return LogPage(items=page.items[-lines:], next={name: page.next[name] for name in (file.name,)})


def tail(folder: Path, *, lines: int, wanted: LogFilter = EVERY) -> LogPage:
    """The last wanted lines of all files together, by time."""
    page = _page(folder, None, wanted)
    return LogPage(items=page.items[-lines:], next=page.next)


def following(folder: Path, places: Mapping[str, int], *, wanted: LogFilter = EVERY) -> LogPage:
    """The wanted lines that were written after the places of an earlier page."""
    return _page(folder, places, wanted)


def _page(folder: Path, places: Mapping[str, int] | None, wanted: LogFilter) -> LogPage:
    names = [str(path.relative_to(folder)) for path in _files(folder, wanted.role)]
    if places is not None:
        return _merged(folder, names, places, wanted)
    # A file that was too large has begun anew; to the older one nothing more is added.
    both = [each for name in names for each in (str(older_of(Path(name))), name)]
    page = _merged(folder, both, None, wanted)
    return LogPage(items=page.items, next={name: page.next[name] for name in names})


def _merged(folder: Path, names: Iterable[str], places: Mapping[str, int] | None, wanted: LogFilter) -> LogPage:
    found: list[_Parsed] = []
    reached: dict[str, int] = {}
    before = ""
    for name in names:
        part = _read(folder / name, None if places is None else places.get(name, 0))
        reached[name] = part.end
        # What a file begins with belongs to the last lines of the older one, which comes before it.
        if not part.before:
            part = part._replace(before=before)
        before = part.text[-BEFORE_SIZE_BYTES:] if name.endswith(_OLDER) else ""
        found += [parsed for parsed in _parse(name, part) if wanted.wants(parsed)]
    found.sort(key=lambda parsed: parsed.at_ns)
    return LogPage(items=[parsed.line for parsed in found], next=reached)


def text_of(line: LogLine, *, local: bool = False) -> str:
    """The line as it is printed: one line, without anything that a terminal obeys; in `local` time, or in UTC."""
    owner = line.role if line.slot is None else f"{line.role}:{line.slot}"
    # In one order, whichever release wrote the line.
    first = {key: line.fields[key] for key in FIRST if key in line.fields}
    fields = " ".join(f"{_printable(key)}={_value(value)}" for key, value in (first | line.fields).items())
    time = _local(line.time) if local else _printable(line.time)
    start = f"{time or '-':<24}  {_printable(owner):<11}  {_printable(line.level) or '-':<7}"
    return f"{start}  {_printable(line.event)}  {fields}".rstrip()


def _local(text: str) -> str:
    """The time by this machine's clock and zone; as it is where it is no time."""
    time_ns = _time_ns(text)
    if time_ns is None:
        return _printable(text)
    return datetime.fromtimestamp(time_ns / 1e9).astimezone().isoformat(timespec="milliseconds")


def _value(value: Any) -> str:
    return _printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _printable(text: str) -> str:
    # A reward, a workflow or an answer may have written it: a line feed would begin a line of its own.
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text.replace("\t", "  "))


def _files(folder: Path, role: str | None) -> Iterable[Path]:
    """The log files, and those in folders of nodes."""
    try:
        entries = list(os.scandir(folder))
        # Not through a link, as with the files.
        nodes = [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
        names = [entry.name for entry in entries if entry.name.endswith(".log")]
        names += [
            f"{node.name}/{each.name}" for node in nodes for each in os.scandir(node) if each.name.endswith(".log")
        ]
    except OSError:
        return []
    chosen = [name for name in sorted(names) if role is None or _owner(name)[0] == role]
    return [folder / name for name in chosen[:FILES]]


class _Part(NamedTuple):
    """A part of a log file."""

    text: str = ""
    """Whole lines."""
    before: str = ""
    """The lines just before them."""
    end: int = 0
    """The place at which the next part begins."""
    written_ns: int = 0
    """The time at which the file was written last."""


def _read(path: Path, start: int | None) -> _Part:
    """Whole lines from `start` on; if that is None, the last ones."""
    try:
        # Not through a link: the folder is the user's, the reader is the daemon. O_NONBLOCK, for the open of a pipe
        # would else wait for a writer for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return _Part(end=start or 0)
    with open(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            return _Part(end=start or 0)
        # A place beyond the end means that the file was replaced by a shorter one: its end is read as if for the
        # first time.
        begin = max(0, status.st_size - TAIL_SIZE_BYTES) if start is None or start > status.st_size else start
        file.seek(begin)
        data = file.read(TAIL_SIZE_BYTES)
        file.seek(max(0, begin - BEFORE_SIZE_BYTES))
        before = file.read(begin - file.tell()) if data else b""
    if start is None and begin > 0:
        skipped = data.find(b"\n") + 1
        begin = begin + skipped
        before += data[:skipped]
        data = data[skipped:]
    # A line that is still being written waits for its end; one longer than a whole read does not.
    whole = data.rfind(b"\n") + 1 or (len(data) if len(data) == TAIL_SIZE_BYTES else 0)
    return _Part(
        data[:whole].decode("utf-8", "replace"), before.decode("utf-8", "replace"), begin + whole, status.st_mtime_ns
    )


def _parse(name: str, part: _Part) -> Iterator[_Parsed]:
    """The lines of a part; the first of them may belong to the last line before it."""
    role, slot = _owner(name)
    time = level = trace_id = ""
    at_ns = 0
    for last in _parse(name, part._replace(text=part.before, before="")) if part.before else ():
        time = last.line.time
        level = last.line.level
        trace_id = last.trace_id
        at_ns = last.at_ns
    for raw in part.text.splitlines():
        line = raw[:LINE_CHARS]
        try:
            fields = msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError):
            fields = None
        if isinstance(fields, dict):
            masked = {
                key: mask_text(value) if isinstance(value, str) else value for key, value in redact(fields).items()
            }
            claimed_ns = _time_ns(str(masked.get("time")))
            if claimed_ns is not None and claimed_ns <= part.written_ns + SKEW_NS:
                time = str(masked.pop("time"))
                at_ns = max(at_ns, claimed_ns)
            level = str(masked.pop("level", level))
            event = str(masked.pop("event", ""))
            trace_id = str(masked.get("trace_id", ""))
            found = LogLine(file=name, role=role, slot=slot, time=time, level=level, event=event, fields=masked)
            yield _Parsed(found, trace_id, at_ns)
        elif line.strip():
            found = LogLine(file=name, role=role, slot=slot, time=time, level=level, event=mask_text(line))
            yield _Parsed(found, trace_id, at_ns)


def _owner(name: str) -> tuple[str, int | None]:
    stem = name.rpartition("/")[2].removesuffix(".1").removesuffix(".log")
    role, _, slot = stem.rpartition("_")
    return (role, int(slot)) if role and slot.isdigit() else (stem, None)


def _since_ns(text: str | None) -> int | None:
    time_ns = None if text is None else _time_ns(text)
    if text is not None and time_ns is None:
        fix = "write it like 2026-01-31T12:00:00Z, with a time zone"
        raise UsageError(f"{text!r} is no time in ISO 8601", field="since", fix=fix)
    return time_ns


def _time_ns(text: str) -> int | None:
    try:
        return time_ns_of(text)
    except (ValueError, OverflowError):
        return None


def _places(text: str) -> dict[str, int]:
    try:
        places = json_decoder(dict[str, int]).decode(text)
    except (msgspec.DecodeError, RecursionError):
        places = {"": -1}
    if any(place < 0 for place in places.values()):
        raise UsageError("no place in log files", field="after", fix="use `next` of an earlier page, as JSON")
    return places

"""The log lines of an experiment's workers, merged by time. Reading files blocks: it is done in a thread.

Workers write one JSON object a line to `JOB_DIR/log/ROLE[_SLOT].log`, or to `JOB_DIR/log/NODE/ROLE[_SLOT].log` on a
cluster if the experiment asks for it; what is not JSON (a library's message, a traceback) belongs to the time of the
line before it. Secrets are masked once more: a library may print one.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from rftd.daemon.views.route import Daemon, Name, read
from rftd.ops.decoding import json_decoder
from rftd.ops.errors import UsageError
from rftd.ops.redaction import MASK, redact
from rftd.storage.queries.experiments import job_dir_of

TAIL_SIZE_BYTES: Final = 4 * 1024 * 1024
"""The most that is read of one file at once."""
# Every slot and the trainer, with room for files that somebody else puts there.
FILES: Final = 64
LINE_CHARS: Final = 16_384

_URL_PASSWORD: Final = re.compile(r"(\w+://[^\s:/@]*:)[^\s@/]+@")
_ASSIGNMENT: Final = re.compile(
    r"(?i)([\w-]*(?:api_?key|token|password|passwd|secret|credentials?)[\"']?\s*[=:]\s*[\"']?)(?!\*\*\*)([^\s\"',;}]{4,})"
)
_BEARER: Final = re.compile(r"(?i)(bearer\s+)[\w.~+/=-]{8,}")


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line."""

    file: str
    role: str
    slot: int | None
    time: str
    """ISO-8601 UTC; empty if no line with a time came before."""
    level: str
    event: str
    """The name of the event, or the whole text of a line that is not JSON."""
    fields: dict[str, Any] = {}


class LogPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some lines, oldest first."""

    items: list[LogLine]
    next: dict[str, int]
    """The place to which each file was read, in bytes: `after` of the next page."""


@read("/v1/experiments/{name}/logs", LogPage, tag="logs")
async def logs(
    daemon: Daemon,
    name: Name,
    n: Annotated[int, Meta(ge=1, le=10_000, description="The last so many lines.")] = 100,
    role: Annotated[str | None, Meta(description="Only of `explorer` or `trainer`.")] = None,
    after: Annotated[str | None, Meta(description="`next` of an earlier page, as JSON.", max_length=8192)] = None,
) -> LogPage:
    """Log lines of all workers, merged by time."""
    id = await daemon.find(name)
    async with daemon.read() as connection:
        folder = Path(await job_dir_of(connection, id)) / "log"
    if after is None:
        return await asyncio.to_thread(tail, folder, lines=n, role=role)
    return await asyncio.to_thread(since, folder, _places(after), role=role)


def tail(folder: Path, *, lines: int, role: str | None = None) -> LogPage:
    """The last lines of all files together, by time."""
    found: list[LogLine] = []
    places: dict[str, int] = {}
    for path in _files(folder, role):
        name = str(path.relative_to(folder))
        text, places[name] = _read(path, None)
        found += list(_parse(name, text))
    found.sort(key=lambda line: line.time)
    return LogPage(items=found[-lines:], next=places)


def since(folder: Path, places: Mapping[str, int], *, role: str | None = None) -> LogPage:
    """The lines that were written after the places of an earlier page."""
    found: list[LogLine] = []
    reached: dict[str, int] = {}
    for path in _files(folder, role):
        name = str(path.relative_to(folder))
        text, reached[name] = _read(path, places.get(name, 0))
        found += list(_parse(name, text))
    found.sort(key=lambda line: line.time)
    return LogPage(items=found, next=reached)


def mask(text: str) -> str:
    """The text without what looks like a secret."""
    text = _URL_PASSWORD.sub(rf"\g<1>{MASK}@", text)
    text = _BEARER.sub(rf"\g<1>{MASK}", text)
    return _ASSIGNMENT.sub(rf"\g<1>{MASK}", text)


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


def _read(path: Path, start: int | None) -> tuple[str, int]:
    """Whole lines from `start` on (None: the last ones), and where the next read begins."""
    try:
        # Not through a link: the folder is the user's, the reader is the daemon. O_NONBLOCK, for the open of a pipe
        # would else wait for a writer for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return "", start or 0
    with open(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            return "", start or 0
        # A place beyond the end means that the file was replaced by a shorter one: its end is read as if for the
        # first time.
        begin = max(0, status.st_size - TAIL_SIZE_BYTES) if start is None or start > status.st_size else start
        file.seek(begin)
        data = file.read(TAIL_SIZE_BYTES)
    if start is None and begin > 0:
        skipped = data.find(b"\n") + 1
        begin = begin + skipped
        data = data[skipped:]
    # A line that is still being written waits for its end; one longer than a whole read does not.
    whole = data.rfind(b"\n") + 1 or (len(data) if len(data) == TAIL_SIZE_BYTES else 0)
    return data[:whole].decode("utf-8", "replace"), begin + whole


def _parse(name: str, text: str) -> Iterator[LogLine]:
    role, slot = _owner(name)
    time = ""
    for raw in text.splitlines():
        line = raw[:LINE_CHARS]
        try:
            fields = msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError):
            fields = None
        if isinstance(fields, dict):
            masked = {key: mask(value) if isinstance(value, str) else value for key, value in redact(fields).items()}
            time = str(masked.pop("time", time))
            level = str(masked.pop("level", ""))
            event = str(masked.pop("event", ""))
            yield LogLine(file=name, role=role, slot=slot, time=time, level=level, event=event, fields=masked)
        elif line.strip():
            yield LogLine(file=name, role=role, slot=slot, time=time, level="", event=mask(line))


def _owner(name: str) -> tuple[str, int | None]:
    stem = name.rpartition("/")[2].removesuffix(".log")
    role, _, slot = stem.rpartition("_")
    return (role, int(slot)) if role and slot.isdigit() else (stem, None)


def _places(text: str) -> dict[str, int]:
    try:
        places = json_decoder(dict[str, int]).decode(text)
    except (msgspec.DecodeError, RecursionError):
        places = {"": -1}
    if any(place < 0 for place in places.values()):
        raise UsageError("no place in log files", field="after", fix="use `next` of an earlier page, as JSON")
    return places

"""`LivePages`: pages of experiments under observation, read once for all listeners and sent as their new parts."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Mapping
from functools import partial
from typing import Any, Final
from uuid import UUID
from weakref import WeakValueDictionary

import msgspec

from rftd.daemon.http.api.services import Services
from rftd.daemon.http.views.experiments import ExperimentPage, page_of, with_moment
from rftd.daemon.http.views.moment import ENDED, moment_of
from rftd.daemon.http.views.wire import to_wire
from rftd.storage.queries.books import Books
from rftd.streams.log.topics import Partition

# Each look may query the tables, and nobody reads faster.
INTERVAL_S: Final = 0.5
"""Seconds between two looks at an observed experiment."""
MOMENT_S: Final = 2.0
"""Seconds between two readings of the moment without new records: tokens under way are in heartbeats only."""
COUNTED_PER_S: Final = 5_000
"""Counting books costs a look at each experience: this many once a second, ten times as many every ten seconds."""
_DIGEST_BYTES: Final = 6
"""Length of a digest in bytes."""
_DIGEST_CHARS: Final = 8
"""Length of a digest in characters."""
_OPENED: Final = "experiment"
"""Part of a page split into its own parts: a new summary must not carry the whole configuration again."""


class LivePage:
    """One experiment's page, with the state of the last look."""

    def __init__(self, services: Services, experiment: UUID) -> None:
        self._services = services
        self._experiment = experiment
        self._last_standing: tuple[Mapping[Partition, int], str | None] | None = None
        self._page: ExperimentPage | None = None
        """The page read last; None before the first."""
        self._state = ""
        self._books: Books | None = None
        self._counted_s = 0.0
        self._moment_s = 0.0
        self._reused = False

    async def look(self) -> ExperimentPage | None:
        """Returns the page; None without new records since. After a change of state, its books are counted anew."""
        services = self._services
        now_s = self._services.clock.monotonic_s()
        standing = (dict(services.applied.positions), services.waiting(self._experiment))
        books = self._books
        if books is not None and (now_s - self._counted_s) * COUNTED_PER_S >= books.produced:
            books = None
        if standing == self._last_standing and (books is not None or not self._reused):
            return await self._renewed(now_s)
        async with services.read() as connection:
            page_now = partial(
                page_of,
                connection,
                self._experiment,
                services.curves,
                standing[1],
                memory=services.memory(self._experiment),
                trackers=await services.trackers(self._experiment),
                budgets=await services.budgets(connection, self._experiment),
            )
            page = await page_now(books=books)
            # The last page of an experiment is the one people keep: its books are counted anew, however recent the
            # others are.
            if books is not None and page.experiment.summary.state != self._state:
                books = None
                page = await page_now()
            page = await with_moment(services, connection, page)
        self._last_standing = standing
        self._page = page
        self._moment_s = now_s
        self._state = page.experiment.summary.state
        self._reused = books is not None
        if books is None:
            self._books = page.experiment.books
            self._counted_s = now_s
        return page

    async def _renewed(self, now_s: float) -> ExperimentPage | None:
        """Returns the last page with a new moment; None if the moment is recent, or the same."""
        page = self._page
        if page is None or page.experiment.summary.state in ENDED or now_s - self._moment_s < MOMENT_S:
            return None
        self._moment_s = now_s
        detail = page.experiment
        async with self._services.read() as connection:
            moment = await moment_of(
                self._services, connection, self._experiment, detail.summary, stages=detail.stages, memory=page.memory
            )
        if moment == page.moment:
            return None
        self._page = msgspec.structs.replace(page, moment=moment)
        return self._page


class PageVersion:
    """One state of a page: its parts as JSON, and the id of the state."""

    def __init__(self, number: int, page: ExperimentPage, before: PageVersion | None) -> None:
        self.number = number
        self.state = page.experiment.summary.state
        """State of the experiment."""
        self._plain = parts_of(page)
        """Parts of the page by name."""
        self._encoded = {name: msgspec.json.encode(part) for name, part in self._plain.items()}
        """Parts of the page by name, as JSON."""
        self._digests = {name: _digest(body) for name, body in self._encoded.items()}
        """Digest of each part, by name."""
        # The names too: a page of another release has other parts.
        self.id = _digest(page.experiment.summary.id.encode() + b"".join(map(str.encode, self._digests)))
        """Id of the version: a digest of the experiment and all parts."""
        self.id += "".join(self._digests.values())
        self._change = None if before is None else self._since_version(before)

    def event_after(self, number: int, id: str) -> bytes | None:
        """Returns the event for a listener with the state `id`, sent as `number` by this process; None if equal.

        Without a known state, and after a change of release or experiment, the event is the whole page.
        """
        if id == self.id:
            return None
        if self._change is not None and number == self.number - 1:
            return self._change
        return self._since_id(id) or self._event("page", self._whole())

    def _since_version(self, before: PageVersion) -> bytes:
        """Returns the event with the parts changed since the version before, of a longer list only the end."""
        changed = [name for name, digest in self._digests.items() if before._digests[name] != digest]
        set_parts: dict[str, msgspec.Raw] = {}
        ends: dict[str, Any] = {}
        for name in changed:
            old = before._plain[name]
            new = self._plain[name]
            dropped, common = _common(old, new) if isinstance(old, list) and isinstance(new, list) else (0, 0)
            if common:
                ends[name] = {"drop": dropped, "from": common, "items": new[common:]}
            else:
                set_parts[name] = msgspec.Raw(self._encoded[name])
        return self._event("change", msgspec.json.encode({"set": set_parts, "ends": ends}))

    def _since_id(self, id: str) -> bytes | None:
        """Returns the event with the parts differing from a state known by its id only; None for an unknown id."""
        if len(id) != len(self.id) or id[:_DIGEST_CHARS] != self.id[:_DIGEST_CHARS]:
            return None
        digests = [id[start : start + _DIGEST_CHARS] for start in range(_DIGEST_CHARS, len(id), _DIGEST_CHARS)]
        changed = [
            name for (name, digest), known in zip(self._digests.items(), digests, strict=True) if digest != known
        ]
        set_parts = {name: msgspec.Raw(self._encoded[name]) for name in changed}
        return self._event("change", msgspec.json.encode({"set": set_parts, "ends": {}}))

    def _whole(self) -> bytes:
        """Returns the page as JSON, composed of its encoded parts."""
        prefix = f"{_OPENED}."
        inner = {name.removeprefix(prefix): body for name, body in self._encoded.items() if name.startswith(prefix)}
        page: dict[str, Any] = {_OPENED: {name: msgspec.Raw(body) for name, body in inner.items()}}
        page |= {name: msgspec.Raw(body) for name, body in self._encoded.items() if not name.startswith(prefix)}
        return msgspec.json.encode(page)

    def _event(self, kind: str, data: bytes) -> bytes:
        return f"event: {kind}\nid: {self.id}\ndata: ".encode() + data + b"\n\n"


class Broadcast:
    """The page of one experiment for all its listeners: the first to ask after half a second reads it anew."""

    def __init__(self, services: Services, experiment: UUID) -> None:
        self._clock = services.clock
        """Clock that measures the time between two readings of the page."""
        self._live = LivePage(services, experiment)
        """Reader of the experiment's page."""
        self._looking = asyncio.Lock()
        """Held while the page is read."""
        self._looked_s: float | None = None
        """Monotonic second of the last look; None before the first."""
        self._version: PageVersion | None = None
        """The version read last; None before the first."""

    async def newest(self) -> PageVersion:
        """Returns the newest state of the page, at most half a second old."""
        async with self._looking:
            now_s = self._clock.monotonic_s()
            recent = self._looked_s is not None and now_s - self._looked_s < INTERVAL_S
            if self._version is not None and recent:
                return self._version
            page = await self._live.look()
            self._looked_s = now_s
            if page is not None:
                number = 1 if self._version is None else self._version.number + 1
                version = PageVersion(number, page, self._version)
                if self._version is None or version.id != self._version.id:
                    self._version = version
            assert self._version is not None
            return self._version


class LivePages:
    """The broadcasts with listeners; one without any is dropped."""

    def __init__(self) -> None:
        self._broadcasts: WeakValueDictionary[UUID, Broadcast] = WeakValueDictionary()
        """Broadcast of each observed experiment, dropped with its last listener."""

    def of(self, services: Services, experiment: UUID) -> Broadcast:
        """Returns the broadcast of an experiment, kept alive by its listeners."""
        broadcast = self._broadcasts.get(experiment)
        if broadcast is None:
            broadcast = self._broadcasts[experiment] = Broadcast(services, experiment)
        return broadcast


def parts_of(page: ExperimentPage) -> dict[str, Any]:
    """Returns the parts of a page as plain data: its fields, of the experiment its own as `experiment.FIELD`."""
    plain: dict[str, Any] = to_wire(page)
    opened = {f"{_OPENED}.{name}": part for name, part in plain.pop(_OPENED).items()}
    return opened | plain


def _common(old: list[Any], new: list[Any]) -> tuple[int, int]:
    """Returns how many elements a moving window lost at its beginning, and how many of the others remained."""
    dropped = next((number for number, element in enumerate(old) if new and element == new[0]), len(old))
    pairs = zip(old[dropped:], new, strict=False)
    common = next((number for number, pair in enumerate(pairs) if pair[0] != pair[1]), None)
    return dropped, min(len(old) - dropped, len(new)) if common is None else common


def _digest(body: bytes) -> str:
    """Returns a short digest of bytes, as 8 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest()).decode()

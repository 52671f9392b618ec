"""`CloudEvent`: a request of another program, written as a record of the topic of requests, and its identity.

A request is no event of the log: it has no envelope, and its value is one CloudEvents 1.0 object as JSON (structured
mode). No fold of an experiment reads requests. A daemon reads and executes them, and the resulting events are the
answer. The attributes stay as written: the code executing a request checks them, and names the wrong one.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Final
from uuid import UUID

import msgspec

from rftd.ops.decoding import UNREADABLE, json_decoder
from rftd.ops.errors import UsageError
from rftd.ops.ids import derive
from rftd.streams.log import topics
from rftd.streams.log.envelope import Record

TYPES: Final = "rftd.experiment."
"""The prefix of every request's type: `rftd.experiment.submit`."""
_QUEUE_REQUEST_TYPES: Final = (f"{TYPES}add_tasks", f"{TYPES}end_tasks")
"""Types of requests about the tasks of a queue."""
SPECVERSION: Final = "1.0"
"""The supported version of CloudEvents."""
ATTRIBUTE_CHARS: Final = 1000
"""Maximum length of source, id, type or subject, in characters."""
_REQUESTS: Final = UUID("72667464-2072-5571-8001-726674640000")
"""The namespace of the keys derived from a source and an id."""
_ABSENT: Final = msgspec.Raw(b"")
"""The value of a missing attribute."""


class CloudEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The attributes of a request, each as raw JSON; empty for a missing attribute."""

    specversion: msgspec.Raw
    id: msgspec.Raw = _ABSENT
    source: msgspec.Raw = _ABSENT
    type: msgspec.Raw = _ABSENT
    subject: msgspec.Raw = _ABSENT
    datacontenttype: msgspec.Raw = _ABSENT
    data: msgspec.Raw = _ABSENT
    data_base64: msgspec.Raw = _ABSENT
    traceparent: msgspec.Raw = _ABSENT
    """The producer's trace context: CloudEvents' extension for tracing."""

    def text(self, name: str) -> str:
        """Decodes an attribute as text; empty if missing or null. Raises UsageError for anything but a short text."""
        raw: msgspec.Raw = getattr(self, name)
        if not bytes(raw) or bytes(raw) == b"null":
            return ""
        try:
            text = json_decoder(str).decode(raw)
        except UNREADABLE:
            raise UsageError("it is not a text", field=name, fix="write it as a JSON string") from None
        if len(text) > ATTRIBUTE_CHARS:
            raise UsageError(f"it is longer than {ATTRIBUTE_CHARS} characters", field=name, fix="shorten it")
        return text

    def needed(self, name: str) -> str:
        """Decodes a required attribute as text. Raises UsageError if it is missing, blank, or no short text."""
        text = self.text(name)
        if not text.strip():
            raise UsageError("the attribute is missing", field=name, fix="CloudEvents 1.0 requires it")
        return text

    def shown(self, name: str) -> str:
        """Returns an attribute for display; empty unless it is a short text."""
        try:
            return self.text(name)
        except UsageError:
            return ""

    @property
    def key(self) -> UUID | None:
        """The identity of the request: source and id, as CloudEvents defines it; None if one of them is missing."""
        source = self.shown("source")
        id = self.shown("id")
        return derive(_REQUESTS, source, id) if source.strip() and id.strip() else None

    @property
    def brings_tasks(self) -> bool:
        """True for a request adding tasks or ending a queue: such requests stay in order, and commands may overtake
        them.
        """
        return self.shown("type") in _QUEUE_REQUEST_TYPES

    @property
    def digest(self) -> bytes:
        """Digest (16 bytes) of a request's type, subject and data, without id, source and time: a request sent again
        has an equal digest.
        """
        hasher = blake2b(digest_size=16)
        for raw in (self.type, self.subject, self.datacontenttype, self.data, self.data_base64):
            content = bytes(raw)
            hasher.update(len(content).to_bytes(8, "big"))
            hasher.update(content)
        return hasher.digest()


def cloud_event(value: bytes) -> CloudEvent | None:
    """Decodes a CloudEvents object; None for other bytes. Never raises."""
    try:
        return json_decoder(CloudEvent).decode(value)
    except UNREADABLE:
        return None


def request_in(record: Record) -> CloudEvent | None:
    """Returns the request of a record; None outside the topic of requests, and for a value without a CloudEvents
    object.
    """
    # Records of rftd never have an empty head: a log without requests pays one comparison for each record.
    if record.head or record.partition.stream != topics.REQUESTS:
        return None
    return cloud_event(record.value)


def is_request(record: Record) -> bool:
    """True if the record holds a request: a CloudEvents object on the topic of requests, written by another program."""
    return request_in(record) is not None


def structured(attributes: dict[str, str], value: bytes) -> bytes:
    """Converts a request of binary mode, `ce_` headers and data, to the JSON object of structured mode."""
    # The data always in base64: a media type states an intent, and need not be true.
    content: dict[str, Any] = {name: text for name, text in attributes.items() if name in CloudEvent.__struct_fields__}
    content.pop("data", None)
    if value:
        content["data_base64"] = value
    return msgspec.json.encode(content)

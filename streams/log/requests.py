"""`CloudEvent`: what another program asks of rftd by a record in the topic of requests, and the identity of that.

Such a record is no event of the log: it has no envelope of ours, and its value is one CloudEvents 1.0 object as JSON
(structured mode). No fold of an experiment takes it in. A daemon reads it, does what it asks for, and the events that
come of that are its answer. The attributes are kept as they were written: whoever carries the request out checks them,
and names the one that is wrong.
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
"""The beginning of the type of every request: `rftd.experiment.submit`."""
_OF_TASKS: Final = (f"{TYPES}add_tasks", f"{TYPES}end_tasks")
SPECVERSION: Final = "1.0"
ATTRIBUTE_CHARS: Final = 1000
"""The longest source, id, type or subject."""
_REQUESTS: Final = UUID("72667464-2072-5571-8001-726674640000")
"""The namespace of the keys that follow from a source and an id."""
_ABSENT: Final = msgspec.Raw(b"")


class CloudEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The attributes of a request, each as the JSON that stands there, and empty where there is none."""

    specversion: msgspec.Raw
    id: msgspec.Raw = _ABSENT
    source: msgspec.Raw = _ABSENT
    type: msgspec.Raw = _ABSENT
    subject: msgspec.Raw = _ABSENT
    datacontenttype: msgspec.Raw = _ABSENT
    data: msgspec.Raw = _ABSENT
    data_base64: msgspec.Raw = _ABSENT
    traceparent: msgspec.Raw = _ABSENT
    """The producer's place in a trace: CloudEvents' extension for it."""

    def text(self, name: str) -> str:
        """The attribute of this name; empty if it is missing or null. Raises UsageError unless it is a short text."""
        raw: msgspec.Raw = getattr(self, name)
        if not bytes(raw) or bytes(raw) == b"null":
            return ""
        try:
            text = json_decoder(str).decode(raw)
        except UNREADABLE:
            raise UsageError("it is no text", field=name, fix="write it as a JSON string") from None
        if len(text) > ATTRIBUTE_CHARS:
            raise UsageError(f"it is longer than {ATTRIBUTE_CHARS} characters", field=name, fix="shorten it")
        return text

    def needed(self, name: str) -> str:
        """The attribute of this name. Raises UsageError if it is missing, blank, or no short text."""
        text = self.text(name)
        if not text.strip():
            raise UsageError("the attribute is missing", field=name, fix="CloudEvents 1.0 has it in every event")
        return text

    def shown(self, name: str) -> str:
        """The attribute of this name for people, whatever it is."""
        try:
            return self.text(name)
        except UsageError:
            return ""

    @property
    def key(self) -> UUID | None:
        """The identity of the request: source and id, as CloudEvents has it; None if one of them is missing."""
        source = self.shown("source")
        id = self.shown("id")
        return derive(_REQUESTS, source, id) if source.strip() and id.strip() else None

    @property
    def brings_tasks(self) -> bool:
        """True for tasks, or their end: they keep their order, and commands may pass them."""
        return self.shown("type") in _OF_TASKS

    @property
    def digest(self) -> bytes:
        """16 bytes that stand for all that the request says: sent again with another `time`, it is the same one."""
        found = blake2b(digest_size=16)
        for raw in (self.type, self.subject, self.datacontenttype, self.data, self.data_base64):
            part = bytes(raw)
            found.update(len(part).to_bytes(8, "big"))
            found.update(part)
        return found.digest()


def cloud_event(value: bytes) -> CloudEvent | None:
    """The CloudEvents object that the bytes are; None for anything else. Never raises."""
    try:
        return json_decoder(CloudEvent).decode(value)
    except UNREADABLE:
        return None


def request_in(record: Record) -> CloudEvent | None:
    """The request that a record is; None outside the topic of requests, and for what is no CloudEvents object."""
    # Of our own records none has an empty head, so that a log without requests pays one comparison for each.
    if record.head or record.partition.stream != topics.REQUESTS:
        return None
    return cloud_event(record.value)


def is_request(record: Record) -> bool:
    """True if another program asks for something by this record: it is no event, and no dead letter either."""
    return request_in(record) is not None


def structured(attributes: dict[str, str], value: bytes) -> bytes:
    """A request of binary mode, `ce_` headers and data, as the JSON object of structured mode."""
    # The data in base64 whatever it is: a media type says what it is meant to be, and it need not be true.
    content: dict[str, Any] = {name: text for name, text in attributes.items() if name in CloudEvent.__struct_fields__}
    content.pop("data", None)
    if value:
        content["data_base64"] = value
    return msgspec.json.encode(content)

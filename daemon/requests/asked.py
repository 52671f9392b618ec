"""A CloudEvents object as a command of the API, with its body and whom it is about; or the reason why it is none."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rftd.daemon.api.bodies import Body, body_of
from rftd.daemon.views import commands, tasks
from rftd.daemon.views.route import CommandRoute
from rftd.ops.decoding import UNREADABLE, json_decoder
from rftd.ops.errors import UsageError
from rftd.streams.requests import SPECVERSION, TYPES, CloudEvent

ROUTES: Final[Mapping[str, CommandRoute[Any, Any]]] = {
    TYPES + route.name: route
    for route in (
        *(commands.submit, commands.pause, commands.resume, commands.cancel, commands.prioritize),
        *(tasks.add_tasks, tasks.end_tasks),
    )
}
"""The command of each type."""
_JSON: Final = "application/json"
_NULL: Final = b"null"


@dataclass(frozen=True, slots=True)
class RequestedCommand:
    """One request that can be carried out."""

    route: CommandRoute[Any, Any]
    body: Body[Any]
    parameters: Mapping[str, str]
    """The values of the names in the route's path."""


def asked_by(event: CloudEvent) -> RequestedCommand:
    """The command that an event asks for. Raises UsageError and what a body of the API raises; may take a while."""
    if (version := event.needed("specversion")) != SPECVERSION:
        what = f"{version[:20]!r} is no version of CloudEvents that is known here"
        raise UsageError(what, field="specversion", fix=f"write {SPECVERSION!r}")
    for name in ("source", "id"):
        event.needed(name)
    route = ROUTES.get(kind := event.needed("type"))
    if route is None:
        raise UsageError(f"{kind[:200]!r} is no request", field="type", fix=f"one of {', '.join(ROUTES)}")
    parameters = {"name": event.needed("subject")} if "{name}" in route.path else {}
    content_type = event.text("datacontenttype")
    data = _data(event, content_type)
    if not data and not route.optional:
        raise UsageError("there is no data", field="data", fix=f"write the body of POST {route.path} there")
    return RequestedCommand(route, body_of(data, content_type, route, field="datacontenttype"), parameters)


def _data(event: CloudEvent, content_type: str) -> bytes:
    """The bytes of the body. Raises UsageError."""
    data = bytes(event.data)
    encoded = bytes(event.data_base64)
    data = b"" if data == _NULL else data
    encoded = b"" if encoded == _NULL else encoded
    if data and encoded:
        raise UsageError("both data and data_base64 are there", field="data", fix="leave one out")
    try:
        if encoded:
            return b64decode(json_decoder(str).decode(encoded), validate=True)
        if data and not _is_json(content_type):
            return json_decoder(str).decode(data).encode()
    except (*UNREADABLE, ValueError) as error:
        field = "data_base64" if encoded else "data"
        fix = "write it as a JSON string" if data else "encode it as RFC 4648 has it"
        raise UsageError(f"it is no {'base64' if encoded else 'text'}: {error}", field=field, fix=fix) from None
    return data


def _is_json(content_type: str) -> bool:
    media = content_type.partition(";")[0].strip().lower()
    return media in ("", _JSON) or media.endswith("+json")

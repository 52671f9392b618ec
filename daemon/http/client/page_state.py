"""`PageState`: an experiment's page kept by a follower, renewed by the parts of each event."""

from __future__ import annotations

from typing import Any

import msgspec


class PageState:
    """The page as plain JSON, with the id of its newest event; kept over restarts of the daemon."""

    def __init__(self) -> None:
        self.id = ""
        """Id of the newest event; empty before the first."""
        self._page: dict[str, Any] = {}

    def renew(self, event: str, id: str, data: bytes) -> bytes:
        """Returns the page as JSON after an event `page` or `change`. Raises the errors of a decoder for other data."""
        content = msgspec.json.decode(data)
        if event == "page":
            self._page = content
        else:
            for name, field_content in content["set"].items():
                self._set(name, field_content)
            for name, end in content["ends"].items():
                self._set(name, [*self._part(name)[end["drop"] :][: end["from"]], *end["items"]])
        self.id = id
        return msgspec.json.encode(self._page)

    def _part(self, name: str) -> list[Any]:
        holder, field = self._holder(name)
        elements: list[Any] = holder[field]
        return elements

    def _set(self, name: str, field_content: Any) -> None:
        holder, field = self._holder(name)
        holder[field] = field_content

    def _holder(self, name: str) -> tuple[dict[str, Any], str]:
        """Returns the mapping with a part named `FIELD` or `experiment.FIELD`, and the field."""
        outer, _, inner = name.partition(".")
        return (self._page[outer], inner) if inner else (self._page, outer)

"""OpenAPI of the answers: schemas come from the very structs that are sent."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from rftd.daemon.api.body import Decide, Drop, Fork, From, Prioritize, Reason, Remove, Submit, Tag, To
from rftd.daemon.api.event_json import EventView
from rftd.daemon.api.event_pages import EventPage
from rftd.daemon.api.experience_view import ExperienceView
from rftd.daemon.api.log_lines import LogPage
from rftd.daemon.api.pages import BatchPage, EvalList, ExperienceList, ExperimentList, ExperimentPage, StepList
from rftd.daemon.api.problem import MEDIA_TYPE, Problem
from rftd.daemon.api.receipts import ForkReceipt, Receipt, SubmitReceipt, VersionView
from rftd.daemon.api.wire import schemas
from rftd.daemon.dlq.letter import DeadLetterList, DeadLetterPage, DeadLetterReceipt
from rftd.daemon.why.wait import Why
from rftd.ops.health import Verdict
from rftd.storage.lineage.graph import LineageGraph
from rftd.storage.queries.lengths import Lengths

ASKED: Final[list[type[msgspec.Struct]]] = [Decide, Drop, Fork, From, Prioritize, Reason, Remove, Submit, Tag, To]
"""The bodies of requests: a field that has a default may be left out of them."""
KINDS: Final[list[type[msgspec.Struct]]] = [
    *ASKED,
    BatchPage,
    DeadLetterList,
    DeadLetterPage,
    DeadLetterReceipt,
    EvalList,
    EventPage,
    EventView,
    ExperienceList,
    ExperienceView,
    ExperimentList,
    ExperimentPage,
    ForkReceipt,
    Lengths,
    LineageGraph,
    LogPage,
    Problem,
    Receipt,
    StepList,
    SubmitReceipt,
    Verdict,
    VersionView,
    Why,
]
"""Every struct that a route reads or answers; those within them follow."""


def answers(
    kind: type[msgspec.Struct], *, status: int = 200, text: str = "", besides: dict[str, Any] | None = None
) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that answers `kind` (or another media type of `besides`), or a problem."""
    said = text or (kind.__doc__ or "").partition("\n")[0]
    return {
        status: {"description": said, "content": {**_json(kind.__name__), **(besides or {})}},
        "4XX": {"description": "The request is wrong.", "content": _json("Problem", MEDIA_TYPE)},
        "5XX": {"description": "The daemon cannot answer now.", "content": _json("Problem", MEDIA_TYPE)},
    }


def takes(kind: type[msgspec.Struct], *, required: bool) -> dict[str, Any]:
    """The `openapi_extra` of a route that reads a body of `kind`."""
    return {"requestBody": {"required": required, "content": _json(kind.__name__)}}


def install(app: FastAPI) -> None:
    """Adds the components to the app's document."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(
                title=app.title,
                version=app.version,
                description=app.description,
                routes=app.routes,
                tags=app.openapi_tags,
            )
            components = schema.setdefault("components", {}).setdefault("schemas", {})
            for name in ("HTTPValidationError", "ValidationError"):
                components.pop(name, None)
            components.update(schemas(KINDS, asked=ASKED))
            for path in schema["paths"].values():
                for operation in path.values():
                    # FastAPI's own error form; ours is in 4XX.
                    operation["responses"].pop("422", None)
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _json(name: str, media_type: str = "application/json") -> dict[str, Any]:
    return {media_type: {"schema": {"$ref": f"#/components/schemas/{name}"}}}

"""OpenAPI of the answers: schemas are derived from the structs sent."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from rftd.daemon.http.api.doorkeeper import OPEN_PATHS
from rftd.daemon.http.views.problem import MEDIA_TYPE, Problem
from rftd.daemon.http.views.route import YAML, CommandRoute, Route
from rftd.daemon.http.views.wire import wire_name
from rftd.daemon.run.consequence import Consequence
from rftd.daemon.trust.asker import AccessRole
from rftd.ops.health import Verdict

SCHEMES: Final = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "A token: the owner's, or one of `rftd token add`."},
    "cookie": {
        "type": "apiKey",
        "in": "cookie",
        "name": "rftd_session",
        "description": "The session of a browser that `/login` signed in; its name ends in the folder's id.",
    },
}
"""The authentication schemes."""
_REFUSALS: Final = {
    "401": "No valid token; the answer does not say why it is invalid.",
    "403": "The token's role is not sufficient, or the daemon does not allow a named path, URL or class.",
    "429": "A limit of the token is reached.",
}
"""Description of each status with which the guard refuses a request."""
_FILE: Final = "The experiment file itself, paths absolute and no secret as a value; a `${...}` in it stays text."
"""Description of a request body that is an experiment file."""


def answers(
    kind: type[msgspec.Struct], *, status: int = 200, text: str = "", besides: dict[str, Any] | None = None
) -> dict[int | str, dict[str, Any]]:
    """Returns the `responses` of a route answering `kind` (or another media type of `besides`), or a problem."""
    description = text or (kind.__doc__ or "").partition("\n")[0]
    return {
        status: {"description": description, "content": {**_json(kind.__name__), **(besides or {})}},
        "4XX": {"description": "The request is wrong.", "content": _json("Problem", MEDIA_TYPE)},
        "5XX": {"description": "The daemon cannot answer now.", "content": _json("Problem", MEDIA_TYPE)},
    }


def takes(kind: type[msgspec.Struct], *, required: bool, file: bool = False) -> dict[str, Any]:
    """Returns the `openapi_extra` of a route reading a body of `kind`, or an experiment file itself."""
    content = _json(kind.__name__)
    if file:
        content[YAML] = {"schema": {"type": "object", "description": _FILE}}
    return {"requestBody": {"required": required, "content": content}}


def install(app: FastAPI, declared: list[Route[Any]]) -> None:
    """Adds the structs of requests and answers to the app's document, nested ones included."""
    bodies: list[type[msgspec.Struct]] = [route.body for route in declared if isinstance(route, CommandRoute)]
    kinds: list[type[msgspec.Struct]] = [*bodies, *(route.answer for route in declared), Consequence, Problem, Verdict]

    roles = {(route.path, "post" if isinstance(route, CommandRoute) else "get"): route.role for route in declared}

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
            components.update(schemas_of(list(dict.fromkeys(kinds)), request_bodies=bodies))
            schema["components"]["securitySchemes"] = SCHEMES
            for path, operations in schema["paths"].items():
                for method, operation in operations.items():
                    # FastAPI's own error form; rftd's errors are in 4XX.
                    operation["responses"].pop("422", None)
                    _guarded(operation, path, roles.get((path, method), AccessRole.READ))
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _guarded(operation: dict[str, Any], path: str, role: AccessRole) -> None:
    """Adds the required role to an operation, and the answers to clients without it."""
    if path in OPEN_PATHS:
        operation["security"] = []
        return
    operation["security"] = [{name: []} for name in SCHEMES]
    needs = f"Needs a token of role `{role.label}`."
    operation["description"] = f"{operation['description']}\n\n{needs}" if operation.get("description") else needs
    for status, text in _REFUSALS.items():
        operation["responses"].setdefault(status, {"description": text, "content": _json("Problem", MEDIA_TYPE)})
    operation["responses"]["429"] = {
        **operation["responses"]["429"],
        "headers": {"Retry-After": {"description": "Seconds, where only time helps.", "schema": {"type": "integer"}}},
    }


def _json(name: str, media_type: str = "application/json") -> dict[str, Any]:
    return {media_type: {"schema": {"$ref": f"#/components/schemas/{name}"}}}


def schemas_of(kinds: list[type[msgspec.Struct]], *, request_bodies: list[type[msgspec.Struct]]) -> dict[str, Any]:
    """Returns the JSON schemas of these structs and nested ones in their form after `to_wire`, by name.

    `request_bodies` come from clients, so their schemas are unchanged.
    """
    _, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    as_they_are = {kind.__name__ for kind in request_bodies}
    return {name: schema if name in as_they_are else _on_the_wire(schema) for name, schema in components.items()}


def _on_the_wire(schema: dict[str, Any]) -> dict[str, Any]:
    properties = schema.get("properties", {})
    renamed = {
        wire_name(field_name): _as_time(property_schema) if field_name.endswith("_ns") else property_schema
        for field_name, property_schema in properties.items()
    }
    # `to_wire` leaves no field out.
    return {**schema, "properties": renamed, "required": sorted(renamed)} if properties else schema


def _as_time(property_schema: dict[str, Any]) -> dict[str, Any]:
    text: dict[str, Any] = {"type": "string", "format": "date-time"}
    nullable = any(choice.get("type") == "null" for choice in property_schema.get("anyOf", ()))
    return {"anyOf": [text, {"type": "null"}]} if nullable else text

"""The experiment file of a run as resolved, with the origin of each field."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from rftd.daemon.http.views.route import After, Daemon, Name, read
from rftd.ops.errors import NotFoundError

Origin: TypeAlias = Literal["file", "flag", "default", "derived"]
"""The setter of a field: the experiment file, a `-s` flag, a default, or other fields."""


class ResolvedField(msgspec.Struct, frozen=True, kw_only=True):
    """One field of the resolved experiment file."""

    field: str
    """Path of the field: `stages[1].buffer.total_steps`."""
    value: Any
    """Content of the field in the resolved file."""
    origin: Origin
    """Setter of the field: the file, a flag, a default, or other fields."""
    text: str
    """The origin in words; of a field with another text in the file, that text."""


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """The resolved experiment file of a run, in the order of `rftd config show`; figures derived from it last."""

    id: str
    """Id of the experiment."""
    name: str
    """Name of the experiment."""
    fields: list[ResolvedField]
    """Fields of the configuration."""


@read("/v1/experiments/{name}/config", Configuration, tag="experiments", name="config")
async def config(daemon: Daemon, name: Name, after: After = None) -> Configuration:
    """The experiment file as resolved, every default included, with the origin of each field; secrets are
    `{env: NAME}`.
    """
    from rftd.daemon.config.effective.experiment import effective_config
    from rftd.daemon.config.effective.origins import origins, submitted_source
    from rftd.daemon.config.field_path import leaves, show

    id = await daemon.find(name, after)
    origin = await daemon.operations.text_origin(id)
    if origin is None:
        raise NotFoundError(f"the submission of {name!r} is unknown", field="name")
    spec = origin.spec
    view = effective_config(spec)
    texts = origins(view, spec.config, submitted_source(spec.config))
    return Configuration(
        id=str(id),
        name=spec.name,
        fields=[
            ResolvedField(field=show(path), value=content, origin=_kind(text), text=text)
            for path, content in leaves(view)
            for text in (texts.get(path, "derived"),)
        ],
    )


def _kind(text: str) -> Origin:
    """Returns the setter named by the words of an origin."""
    if text.startswith("the file"):
        return "file"
    if text.startswith("-s"):
        return "flag"
    return "default" if text.startswith("default") else "derived"

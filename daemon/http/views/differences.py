"""The fields with different contents in the resolved configurations of several experiments."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from rftd.daemon.http.views.comparison import different_experiments
from rftd.daemon.http.views.route import After, Daemon, read
from rftd.storage.queries.experiments import ExperimentSummary, get_summary


class FieldDifference(msgspec.Struct, frozen=True, kw_only=True):
    """One field of the experiment file, with its content in each of the compared experiments."""

    field: str
    """Path of the field: `stages[1].buffer.total_steps`."""
    values: list[dict[str, Any]]
    """For each experiment an object with the content as `value`; an empty object without the field."""


class Differences(msgspec.Struct, frozen=True, kw_only=True):
    """The differing fields of experiments, every default included; the name is left out."""

    items: list[ExperimentSummary]
    """The experiments, in the requested order."""
    differences: list[FieldDifference]
    """The fields, in the order of the first experiment with the field."""


@read("/v1/diff", Differences, tag="experiments", name="diff")
async def diff(
    daemon: Daemon,
    name: Annotated[list[str] | None, Meta(description="The experiments: two or more, repeated.")] = None,
    after: After = None,
) -> Differences:
    """The differing fields of experiments, resolved with every default."""
    from rftd.daemon.config.effective.differences import NoField, differing
    from rftd.daemon.config.effective.experiment import effective_config
    from rftd.daemon.config.field_path import show

    async with daemon.read(after) as connection:
        ids = await different_experiments(daemon, connection, name or [])
        summaries = [await get_summary(connection, id) for id in ids]
    origins = [await daemon.operations.text_origin(id) for id in ids]
    files = [{} if origin is None else effective_config(origin.spec) for origin in origins]
    return Differences(
        items=summaries,
        differences=[
            FieldDifference(
                field=show(path), values=[{} if content is NoField else {"value": content} for content in contents]
            )
            for path, contents in differing(files)
        ],
    )

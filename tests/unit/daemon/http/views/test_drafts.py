"""Drafts: changes applied to a text, the errors of a check at their fields, and fields made from declarations."""

from __future__ import annotations

from typing import Annotated, Any

import httpx
import pytest
from msgspec import Meta
from synthetic.daemon.experiment_files import TEXT, config

from rftd.daemon.config.form_fields import argument_fields, form_fields
from rftd.daemon.http.page.starts import ESSENTIAL, STARTS
from rftd.ops.plugins import Plugins
from rftd.streams.spec.declaration import InUnit

pytestmark = pytest.mark.anyio
DRAFT = "/v1/experiments/draft"


class Patient:
    """A part of a third party with an argument declared with text, unit, bound and default."""

    def __init__(self, wait: Annotated[float, InUnit("s"), Meta(ge=1, description="Longest wait.")] = 7.0) -> None:
        self.wait = wait


async def drafted(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    answer = await client.post(DRAFT, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_changes_are_in_configuration_and_commented_file_and_the_check_is_of_them(
    client: httpx.AsyncClient,
) -> None:
    view = await drafted(client, config=config(), set=["buffer.total_steps=77"], unset=["labels"])
    assert view["config"]["buffer"]["total_steps"] == 77
    assert "total_steps: 77  # " in view["text"]
    assert view["errors"] == []
    assert view["report"]["cost"][0]["steps"] == 77


@pytest.mark.parametrize("name", ["", ".", "a[", "]", "mode.[x]"])
async def test_a_field_to_remove_without_a_path_is_an_error(client: httpx.AsyncClient, name: str) -> None:
    view = await drafted(client, config=config(), unset=[name])
    assert [fault["what"] for fault in view["errors"]] == [f"{name!r} is not a field's path"]
    assert view["config"] == config()


async def test_errors_are_those_of_a_check_with_their_fields(client: httpx.AsyncClient) -> None:
    changes = ["buffer.batch_size=none", "algorithm.algorithm_types=grpo", "mode=sideways"]
    view = await drafted(client, config=config(), set=changes)
    refused = (await client.post("/v1/experiments/check", json={"config": view["config"]})).json()
    said = [(fault["field"], fault["what"], fault["fix"]) for fault in view["errors"]]
    assert said == [(fault["field"], fault["what"], fault.get("fix")) for fault in refused["errors"]]
    assert {field for field, _, _ in said} >= {"buffer.batch_size", "mode"}
    assert view["report"] is None


async def test_a_text_is_read_as_a_file_and_an_unreadable_one_is_an_error(client: httpx.AsyncClient) -> None:
    view = await drafted(client, text=TEXT.replace("name: mine", "name: ${oc.env:HOME}"))
    assert view["config"]["name"] == "${oc.env:HOME}"
    broken = await drafted(client, text="a: [1\nb: 2")
    assert broken["errors"]
    assert broken["config"] == {}
    deep = await drafted(client, text="a: " + "[" * 200)
    assert deep["errors"]
    for text in STARTS.values():
        gaps = await drafted(client, text=text)
        assert {fault["field"] for fault in gaps["errors"]} >= {"model.model_path"}


def test_every_field_of_the_beginners_form_is_declared_with_its_bounds() -> None:
    fields = {field.path: field for field in form_fields()}
    assert set(ESSENTIAL) <= set(fields)
    rate = fields["algorithm.optimizer.lr"]
    assert (rate.kind, rate.minimum, rate.section) == ("number", 0.0, "algorithm")
    assert "both" in fields["mode"].words


def test_an_argument_declared_by_a_part_is_a_field_with_text_unit_bound_and_default() -> None:
    parts = Plugins[Any]("part", group="rftd.nothing", table={"patient": f"{__name__}:Patient"})
    parts.load = lambda name: Patient  # type: ignore[method-assign]
    [field] = argument_fields("patient", "taskset.reward_fn_args", parts)
    assert (field.path, field.kind, field.default) == ("taskset.reward_fn_args.wait", "number", "7.0")
    assert (field.text, field.minimum, field.section) == ("Longest wait. In s.", 1.0, "patient")

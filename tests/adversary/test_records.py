"""The corpus as records of a Kafka producer, the rows of queues, and the attributes of requests: no effect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest
from synthetic.worlds.adversary import CANARY, Gate

from rftd.daemon.http.views.tasks import AddTasks
from rftd.streams.events.experiment import ExperimentRejected
from rftd.streams.log.requests import CloudEvent
from rftd.streams.spec.sections import Format

pytestmark = pytest.mark.anyio

HERE: Final = Path(__file__).parent
CORPUS: Final[dict[str, list[dict[str, Any]]]] = {
    file.stem: json.loads(file.read_text()) for file in sorted((HERE / "corpus").glob("*.json"))
}
TASKS: Final[list[dict[str, Any]]] = json.loads((HERE / "records" / "tasks.json").read_text())
REQUESTS: Final[list[dict[str, Any]]] = json.loads((HERE / "records" / "requests.json").read_text())
FORMAT: Final = {
    "prompt_type": "raw",
    "prompt_key": "question",
    "response_key": "answer",
    "messages_key": "messages",
    "system_prompt_key": "system",
    "workflow_key": "workflow",
    "reward_fn_key": "reward",
}
OF_OTHER_ROWS: Final = {
    *("category_key", "tools_key", "chosen_key", "rejected_key", "completion_key", "label_key"),
    *("image_key", "video_key"),
}
"""Keys of held-out rows and of rows to imitate, of which no queue has any; and keys that no file may set."""
SUBMIT: Final = "rftd.experiment.submit"
ADD: Final = "rftd.experiment.add_tasks"
HARMLESS: Final = "not under way"
"""The answer to rows that are tasks: what they say is text, or a part that the owner installed."""


def queue_of(opened: Gate) -> dict[str, Any]:
    """An experiment whose tasks are added while it runs, with a key for each thing that a row may say."""
    config = opened.config({"name": "queue", "buffer.explorer_input.taskset.format": FORMAT})
    taskset = config["buffer"]["explorer_input"]["taskset"]
    del taskset["path"]
    taskset["storage_type"] = "queue"
    return config


def fault_of(refusals: list[ExperimentRejected], words: list[str]) -> str:
    """The fault of the answer to one request; empty if there is none."""
    if len(refusals) != 1:
        return f"{len(refusals)} refusals"
    reason = refusals[0].reason
    if CANARY in f"{reason}{refusals[0].request}":
        return f"tells what only the daemon knows: {reason}"
    missing = [word for word in words if word not in reason]
    return f"{refusals[0].code} without {missing}: {reason}" if missing else ""


@pytest.mark.parametrize("kind", sorted(CORPUS))
async def test_no_case_of_the_corpus_has_an_effect_as_a_record(opened: Gate, kind: str) -> None:
    wrong: dict[str, str] = {}
    for number, case in enumerate(CORPUS[kind]):
        if "ask" in case:
            continue  # no request of a record
        opened.build(case.get("world", []))
        files = opened.files()
        data = {"config": opened.config(case["change"])}
        refusals, others = await opened.request(SUBMIT, {"id": f"{kind}-{number}", "data": data})
        line = [] if case["allow_list"] == "grammar" else case["allow_list"].split(" or ")[:1]
        if fault := fault_of(refusals, line) or ("something was appended" if others else ""):
            wrong[case["name"]] = fault
        if opened.files() != files:
            wrong[case["name"]] = "files changed"
    assert wrong == {}, "\n".join(f"{name}: {reason}" for name, reason in wrong.items())
    assert opened.connections == [], "an address was connected to"


async def test_no_row_of_a_queue_has_an_effect(opened: Gate) -> None:
    """Neither over HTTP nor by a record, from those who may add to the queue."""
    over_http = await opened.client.post("/v1/experiments", json={"config": queue_of(opened)})
    assert over_http.status_code == 202, over_http.text
    await opened.projector.catch_up()
    config = {**queue_of(opened), "name": "by-record"}
    refusals, accepted = await opened.request(SUBMIT, {"id": "queue", "data": {"config": config}})
    assert (refusals, bool(accepted)) == ([], True)
    wrong: dict[str, str] = {}
    for number, case in enumerate(TASKS):
        files, heads, body = opened.files(), await opened.log.heads(), opened.here(case["body"])
        answer = await opened.client.post(f"/v1/experiments/{over_http.json()['id']}/tasks", json=body)
        if case["says"] not in answer.text or (answer.status_code != 422 and case["says"] != HARMLESS):
            wrong[case["name"]] = f"{answer.status_code} {answer.text[:600]}"
        if await opened.log.heads() != heads:
            wrong[case["name"]] = "something was appended"
        if case["says"] == HARMLESS:
            continue
        refusals, others = await opened.request(ADD, {"id": f"row-{number}", "subject": "by-record", "data": body})
        if fault := fault_of(refusals, [case["says"]]) or ("something was appended" if others else ""):
            wrong[f"{case['name']}, by a record"] = fault
        if opened.files() != files:
            wrong[case["name"]] = "files changed"
    assert wrong == {}, "\n".join(f"{name}: {reason}" for name, reason in wrong.items())
    assert opened.connections == [], "an address was connected to"


async def test_no_attribute_of_a_request_has_an_effect(opened: Gate) -> None:
    parent = await opened.client.post("/v1/experiments", json={"config": opened.config({"name": "parent"})})
    queue = await opened.client.post("/v1/experiments", json={"config": queue_of(opened)})
    await opened.announce_base(UUID(parent.json()["id"]))
    ids = {"parent": parent.json()["id"], "queue": queue.json()["id"]}
    wrong: dict[str, str] = {}
    for number, case in enumerate(REQUESTS):
        files = opened.files()
        attributes = {name: ids.get(str(value).strip("{}"), value) for name, value in case["attributes"].items()}
        refusals, others = await opened.request(SUBMIT, {"id": f"request-{number}", **attributes})
        if fault := fault_of(refusals, [case["says"]] if "says" in case else []):
            wrong[case["name"]] = fault
        if others or opened.files() != files:
            wrong[case["name"]] = f"an effect: {others}"
    assert wrong == {}, "\n".join(f"{name}: {reason}" for name, reason in wrong.items())
    assert opened.connections == [], "an address was connected to"


def test_every_field_of_a_row_and_of_a_request_is_attacked() -> None:
    keys = {name for name in Format.__struct_fields__ if name.endswith("_key")}
    of_rows = {*AddTasks.__struct_fields__, *keys - OF_OTHER_ROWS}
    assert of_rows <= {case["attacks"] for case in TASKS}, "add a case to tests/adversary/records/tasks.json"
    attributes = set(CloudEvent.__struct_fields__)
    attacked = {case["attacks"] for case in REQUESTS}
    assert attributes <= attacked, "add a case to tests/adversary/records/requests.json"
    assert {*FORMAT} >= keys - OF_OTHER_ROWS, "the queue of these tests has them all"

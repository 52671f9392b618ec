"""The manifests of docs/production.md: well-formed, and with command lines, variables and topics that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import click
import pytest
import yaml
from synthetic.docs.pages import ROOT, blocks_of, prose_of

from rftd.daemon.cli.cli import rftd
from rftd.daemon.cli.daemon_file import checked_postgres_url
from rftd.streams.kafka.settings import parse_kafka
from rftd.streams.log.topics import TOPICS

PAGE = ROOT / "docs" / "production.md"
COMPOSE, KUBERNETES = (list(yaml.safe_load_all(block.text)) for block in blocks_of(PAGE, "yml"))


def containers() -> Iterator[tuple[str, list[str]]]:
    """The name and the `rftd` arguments of each container of ours."""
    for name, service in COMPOSE[0]["services"].items():
        if service["image"].startswith("rftd:"):
            yield f"compose {name}", service["command"]
    for document in KUBERNETES:
        for container in document.get("spec", {}).get("template", {}).get("spec", {}).get("containers", ()):
            yield f"kubernetes {container['name']}", container["args"]


def variables() -> Iterator[tuple[str, str]]:
    for service in COMPOSE[0]["services"].values():
        yield from service["environment"].items()
    for document in KUBERNETES:
        yield from document.get("data", {}).items()
        yield from document.get("stringData", {}).items()


@pytest.mark.parametrize(
    ("name", "arguments"), list(containers()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_each_container_runs_a_command_line_that_exists(
    name: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RFTD_KAFKA", raising=False)
    context, words = click.Context(rftd, info_name="rftd"), list(arguments)
    command: click.Command | None = rftd
    while isinstance(command, click.Group):
        context = click.Context(command, parent=context)
        command = command.get_command(context, words.pop(0))
    assert command is not None
    command.make_context(name, words, parent=context)


def test_variables_are_read_by_somebody() -> None:
    known = re.findall(r"RFTD_[A-Z]+(?:_[A-Z]+)*", "".join(path.read_text() for path in source_files()))
    for name, value in variables():
        if name.startswith("RFTD_"):
            assert name in known, name
        if name == "RFTD_KAFKA":
            parse_kafka(value)
        if name == "RFTD_POSTGRES":
            checked_postgres_url(value)


def source_files() -> Iterator[Any]:
    return (path for room in ("daemon", "streams", "ops") for path in (ROOT / room).rglob("*.py"))


def test_addresses_of_the_page_are_addresses() -> None:
    text = "".join(block.text for block in blocks_of(PAGE, "console"))
    addresses = [value.strip("'") for value in re.findall(r"^RFTD_KAFKA=(\S+)$", text, re.MULTILINE)]
    assert [parse_kafka(address).replication for address in addresses] == [1, 3]


def test_volumes_claims_and_selectors_fit_together() -> None:
    volumes = COMPOSE[0]["volumes"]
    for service in COMPOSE[0]["services"].values():
        assert {mount.partition(":")[0] for mount in service["volumes"]} <= set(volumes)
    claims = {each["metadata"]["name"] for each in KUBERNETES if each["kind"] == "PersistentVolumeClaim"}
    for document in KUBERNETES:
        if document["kind"] not in ("StatefulSet", "Deployment"):
            continue
        spec = document["spec"]
        assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
        pod = spec["template"]["spec"]
        named = {volume["name"] for volume in pod["volumes"]}
        assert {mount["name"] for mount in pod["containers"][0]["volumeMounts"]} == named
        assert {
            v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"] if "persistentVolumeClaim" in v
        } <= claims


def test_the_table_of_topics_is_the_table_of_streams() -> None:
    rows = re.findall(r"^\| `(rftd\.\w+)` \| (\d+) \| (for ever|one hour) \|$", prose_of(PAGE), re.MULTILINE)
    kept = {None: "for ever", 3600.0: "one hour"}
    assert rows == [(topic.name, str(topic.partitions), kept[topic.retention_s]) for topic in TOPICS.values()]

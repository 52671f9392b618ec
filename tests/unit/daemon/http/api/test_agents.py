"""Agents: a script that knows only what /llms.txt says finds every read, and the skill's file names the same."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from synthetic.daemon.command_line import Served
from synthetic.daemon.served_daemon import served_daemon

from rftd.daemon.http.api.routes import declared_routes
from rftd.daemon.http.views.route import CommandRoute, ReadRoute

TOKEN = "right"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served_daemon(tmp_path_factory.mktemp("agents"), token=TOKEN) as one:
        yield one


class Agent:
    """It has an address, a token and the text; all else it finds there."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.text = self.get("/llms.txt")
        self.sources = dict(re.findall(r"^- `\{(\w+)\}`: `(.+)\)$", self.text, re.MULTILINE))
        self.reads = re.findall(r"^- \[(/v1/[^\]]+|/version)\]\(", self.text, re.MULTILINE)

    def get(self, path: str) -> str:
        request = urllib.request.Request(self.url + path, headers={"Authorization": f"Bearer {TOKEN}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            body: bytes = answer.read()
        return body.decode()

    def filled(self, path: str) -> str:
        """The path with values of its placeholders, found as the text says."""
        for name in re.findall(r"\{(\w+)\}", path):
            place, _, source = self.sources[name].partition("` of [")
            found = list(values(json.loads(self.get(self.filled(source.partition("]")[0]))), place))
            known = [value for value in found if value is not None]
            if not known:
                raise LookupError(name)
            path = path.replace(f"{{{name}}}", str(known[-1]))
        return path


def values(tree: Any, place: str) -> Iterator[Any]:
    head, _, rest = place.partition(".")
    key = head.removesuffix("[]")
    child = tree.get(key)
    for element in child if head.endswith("[]") else [child]:
        yield from values(element, rest) if rest else [element]


REQUIRED = {
    "/v1/experiments/{name}/prompts",
    "/v1/experiments/{name}/words",
    "/v1/comparison",
    "/v1/diff",
    "/v1/lineage",
    "/v1/series",
    "/v1/dead-letters/one",
}
"""Reads that need a parameter, which the error names."""


def test_a_script_that_knows_nothing_else_reads_everything(served: Served) -> None:
    agent = Agent(served.url)
    declared = {route.path for route in declared_routes() if isinstance(route, ReadRoute)}
    assert set(agent.reads) >= declared
    answers = {}
    missing = []
    for path in sorted(declared):
        try:
            answers[path] = json.loads(agent.get(agent.filled(path)))
        except LookupError as error:
            missing.append(str(error))
        except urllib.error.HTTPError as error:
            problem = json.loads(error.read())
            assert error.code < 500, (path, problem)
            assert problem["code"].startswith("RFTD-")
            answers[path] = problem
    assert set(missing) <= {"sweep"}, "the daemon of this test has no sweep"
    refused = {path for path, answer in answers.items() if "code" in answer and "detail" in answer}
    assert refused <= REQUIRED | {"/v1/experiments/{name}/evals/{version}", "/v1/experiments/{name}/held-out/{row}"} | {
        path for path in refused if answers[path]["status"] == 404
    }
    assert answers["/v1/experiments/{name}/why"]["waits"]
    assert answers["/v1/experiments/{name}/experiences"]["items"]


def test_the_text_and_the_skill_name_every_read_and_command(served: Served) -> None:
    agent = Agent(served.url)
    skill = agent.get("/skill.md")
    head = yaml.safe_load(skill.split("---")[1])
    assert head["name"] == "rftd"
    assert head["description"]
    for route in declared_routes():
        line = f"POST {route.path}`" if isinstance(route, CommandRoute) else f"[{route.path}]({route.path})"
        assert line in agent.text
        assert line in skill


def test_each_placeholder_of_a_read_has_a_read_that_tells_its_values() -> None:
    from rftd.daemon.http.api.agents import PLACEHOLDERS

    paths = {route.path for route in declared_routes() if isinstance(route, ReadRoute)}
    names = {name for path in paths for name in re.findall(r"\{(\w+)\}", path)}
    assert names <= set(PLACEHOLDERS), "name the source of a new placeholder in PLACEHOLDERS"
    assert {path for path, _ in PLACEHOLDERS.values()} <= paths


def test_a_stranger_learns_nothing(served: Served) -> None:
    for path in ("/llms.txt", "/skill.md"):
        with pytest.raises(urllib.error.HTTPError) as raised:
            urllib.request.urlopen(served.url + path, timeout=60)
        assert raised.value.code == 401

"""All of the corpus is refused to a submitter, without an effect, naming the field and the line that allows it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin
from uuid import UUID

import pytest
from synthetic.worlds.adversary import CANARY, Gate, bearer

from rftd.daemon.config.resolve.monitor import arguments_of
from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.schema.naming import kind_of
from rftd.daemon.config.schema.section import Section
from rftd.streams.spec.declaration import NameKind
from rftd.workers.tracking.registry import TRACKERS

pytestmark = pytest.mark.anyio

CORPUS: dict[str, list[dict[str, Any]]] = {
    file.stem: json.loads(file.read_text()) for file in sorted(Path(__file__).with_name("corpus").glob("*.json"))
}
CASES = [(kind, case) for kind, cases in CORPUS.items() for case in cases]
HARMLESS = (NameKind.PLAIN, NameKind.PLUGIN)
"""Kinds that name nothing outside of the file, or a part that the owner installed."""
LINES = frozenset(("roots", "secrets", "grammar", "archive", "owner")) | {
    f"allow_{kind}" for kind in ("env", "urls", "code", "args", "commands", "sources")
}


@pytest.mark.parametrize("kind", sorted(CORPUS))
async def test_no_case_has_an_effect_and_each_refusal_says_what_would_allow_it(opened: Gate, kind: str) -> None:
    accepted = await opened.client.post("/v1/experiments", json={"config": opened.config({"name": "parent"})})
    assert accepted.status_code == 202, f"the experiment without a change must be allowed: {accepted.text}"
    await opened.announce_base(UUID(accepted.json()["id"]))
    wrong: dict[str, str] = {}
    for case in CORPUS[kind]:
        opened.build(case.get("world", []))
        files, heads = opened.files(), await opened.log.heads()
        for answer in await opened.ask(case, accepted.json()["id"]):
            if reason := fault_of(answer.status_code, answer.text, case):
                wrong[case["name"]] = f"{reason}: {answer.status_code} {answer.text[:600]}"
        if opened.files() != files:
            wrong[case["name"]] = f"files changed: {set(opened.files().items()) ^ set(files.items())}"
        if await opened.log.heads() != heads:
            wrong[case["name"]] = "something was appended"
    assert wrong == {}, "\n".join(f"{name}: {reason}" for name, reason in wrong.items())
    assert opened.connections == [], "an address was connected to"


def fault_of(status: int, text: str, case: dict[str, Any]) -> str:
    """The fault of one answer to a case; empty if there is none."""
    if CANARY in text:
        return "the answer holds what only the daemon knows"
    problem = json.loads(text)
    parts = problem.get("errors") or [problem]
    line = case["allow_list"]
    if line == "grammar":
        if status != 422:
            return "not refused for its form"
    elif status != 403 or problem["code"] != "RFTD-API-008":
        return "not refused as not allowed"
    else:
        shown = json.dumps([problem["detail"], *(part.get("fix") for part in parts), problem.get("fix")])
        # A submission copies the folder of an agent before its command is judged; a check copies nothing.
        if not any(name in shown for name in line.split(" or ")):
            return f"does not name {line}"
    fields = [str(part.get("field") or "") for part in parts] + [str(problem.get("field") or "")]
    if not any(matches(named, case["attacks"]) for named in fields):
        return f"names {fields}, not {case['attacks']}"
    return ""


def matches(named: str, attacked: str) -> bool:
    """True if a field of an answer is the attacked one, one within it, or the section around it."""
    plain = ".".join(part.partition("[")[0] for part in named.split(".") if part)
    words = plain.split(".")
    wanted = attacked.split(".")
    return (
        words[: len(wanted)] == wanted or (len(words) > 1 and words == wanted[: len(words)]) or _within(words, wanted)
    )


def _within(words: list[str], wanted: list[str]) -> bool:
    """True if the wanted words are among the others, in their order: between them are names of the user's."""
    rest = iter(words)
    return all(word in rest for word in wanted)


async def test_the_file_of_a_reward_is_refused_by_its_own_name(opened: Gate) -> None:
    taskset = "buffer.explorer_input.taskset"
    change = {
        f"{taskset}.default_reward_fn_type": "reward_model",
        f"{taskset}.reward_fn_args": {"path": "{outside}/reward"},
    }
    case = {"attacks": f"{taskset}.reward_fn_args", "change": change, "allow_list": "roots"}
    answers = await opened.ask(case, "")
    assert [answer.status_code for answer in answers] == [403, 403]
    assert [fault_of(answer.status_code, answer.text, case) for answer in answers] == ["", ""]


async def test_the_file_of_a_workflow_is_refused_by_its_own_name(opened: Gate) -> None:
    taskset = "buffer.explorer_input.taskset"
    change = {
        f"{taskset}.default_workflow_type": "email_search_workflow",
        f"{taskset}.default_reward_fn_type": "exact_match_reward",
        f"{taskset}.workflow_args": {"path": "{outside}/emails.db"},
    }
    case = {"attacks": f"{taskset}.workflow_args", "change": change, "allow_list": "roots"}
    answers = await opened.ask(case, "")
    assert [fault_of(answer.status_code, answer.text, case) for answer in answers] == ["", ""]


async def test_the_owner_is_not_held_to_the_lists(opened: Gate) -> None:
    opened.client.headers.update(bearer(opened.owner_token))
    refused = {}
    for _, case in CASES:
        if case["allow_list"] in ("grammar", "archive") or "ask" in case:
            continue
        answer = await opened.client.post("/v1/experiments/check", json={"config": opened.config(case["change"])})
        if answer.status_code == 403:
            refused[case["name"]] = answer.text
    assert refused == {}


def test_the_corpus_is_well_formed() -> None:
    names = [f"{kind}: {case['name']}" for kind, case in CASES]
    assert len(names) == len(set(names)) >= 200
    for _, case in CASES:
        assert set(case) <= {"name", "attacks", "kind", "change", "world", "allow_list", "ask"}
        assert set(case["allow_list"].split(" or ")) <= LINES
        assert case["change"]


def test_every_field_that_names_something_is_attacked() -> None:
    where: dict[str, tuple[type[Section], str]] = {path: place for path, place in marked_fields(Experiment)}
    attacked = {where[case["attacks"]] for _, case in CASES if case["attacks"] in where}
    left = sorted({path for path, place in where.items() if place not in attacked})
    assert left == [], "add a case for each of these to tests/adversary/corpus"


def test_every_argument_of_a_tracker_is_attacked() -> None:
    attacked = {
        (case["change"].get("monitor.monitor_type"), name)
        for _, case in CASES
        for name in case["change"].get("monitor.monitor_args") or {}
    }
    missing = [(kind, name) for kind in TRACKERS.names() for name in arguments_of(kind) if (kind, name) not in attacked]
    assert missing == [], "add a case for each of these to tests/adversary/corpus"


def marked_fields(
    section: type[Section], path: str = "", seen: tuple[type[Section], ...] = ()
) -> Iterator[tuple[str, tuple[type[Section], str]]]:
    """Every field with a mark that is no harmless one: its path, and the section that declares it."""
    for name, field in section.model_fields.items():
        here = f"{path}.{name}".lstrip(".")
        kind = kind_of(field)
        if kind is not None and kind not in HARMLESS:
            declared = next(base for base in reversed(section.__mro__) if name in getattr(base, "model_fields", {}))
            yield here, (section if name in section.__annotations__ else declared, name)
        elif kind is None:
            for below in sections_in(field.annotation):
                if below not in seen:
                    yield from marked_fields(below, here, (*seen, below))


def sections_in(annotation: Any) -> Iterator[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    elif get_origin(annotation) is not None:
        for part in get_args(annotation):
            yield from sections_in(part)

"""Whatever a file holds, reading it ends in a specification or in a ConfigErrors, and the two sides agree."""

from __future__ import annotations

import contextlib
import copy
from pathlib import Path
from typing import Any

import msgspec
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rftd.daemon.config.field_path import parse, show
from rftd.daemon.config.issue import ConfigErrors
from rftd.daemon.config.loading import Submission, check_config, load_text
from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.schema.section import Section
from rftd.daemon.config.validation import all_fields

BASE = yaml.safe_load((Path(__file__).parents[2] / "examples" / "gsm8k.yaml").read_text())
ENV = {"A": "1", "YES": "yes", "HF_TOKEN": "canary-7f3a", "DB": "postgres://u:canary-7f3a@h/d"}
FIELDS = sorted({show(path) for path in all_fields()})

_scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(
        ["${oc.env:A}", "${oc.env:HF_TOKEN}", "${oc.env:DB}", "${model.model_path}", "${name}", "1e-5", "${", "-1"]
    ),
    st.sampled_from(["grpo", "sft", "fixed", "fully_async", "torch", "train", "both", "/data", "math_workflow"]),
)
_values = st.recursive(
    _scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.one_of(st.text(max_size=6), st.sampled_from(["path", "name", "api_key", "env"])), inner, max_size=3
        ),
    ),
    max_leaves=6,
)
_quick = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def _load(text: str, overrides: tuple[str, ...] = ()) -> Submission | None:
    try:
        return load_text(text, "f.yaml", overrides=overrides, environ=ENV, cwd=Path("/w"))
    except ConfigErrors as errors:
        assert errors.errors
        assert "canary-7f3a" not in str(errors)
        return None


def _check(submission: Submission | None) -> None:
    if submission is None:
        return
    encoded = msgspec.json.encode(submission.spec)
    assert b"canary-7f3a" not in encoded
    assert check_config(msgspec.json.decode(msgspec.json.encode(submission.config))) == submission.spec


@_quick
@given(st.text(max_size=200))
@example("a: &a\n  <<: *a")
@example("? {a: b}\n: c")
@example("%YAML 9.9\n---\na: 1")
@example("!!binary |\n  aGk=")
@example("a: !!set {b, c}\n<<: 3")
@example("a: !!timestamp 2001-01-01\n&x : *x")
@example("\ufeffname: x")
@example('name: "\\ud800"')
def test_any_text(text: str) -> None:
    _check(_load(text))


@_quick
@given(st.binary(max_size=120).map(lambda data: data.decode("latin-1")))
def test_any_bytes(text: str) -> None:
    _check(_load(text))


@_quick
@given(
    st.dictionaries(st.sampled_from(["model", "buffer", "stages", "algorithm", "explorer", "monitor", "x"]), _values)
)
def test_any_sections(tree: dict[str, Any]) -> None:
    _check(_load(yaml.safe_dump({**BASE, **tree}, allow_unicode=True)))


@settings(_quick, max_examples=400)
@given(st.sampled_from(FIELDS), _values)
def test_any_value_in_any_field(field: str, value: Any) -> None:
    tree = copy.deepcopy(BASE)
    node: Any = tree
    path = parse(field)
    assert path is not None
    for part in path[:-1]:
        below = node.get(part)
        node[part] = node = below if isinstance(below, dict) else {}
    node[path[-1]] = value
    _check(_load(yaml.safe_dump(tree, allow_unicode=True)))
    with contextlib.suppress(ConfigErrors):
        check_config(tree)


@_quick
@given(st.one_of(st.text(max_size=30), st.tuples(st.sampled_from(FIELDS), _scalars).map(lambda p: f"{p[0]}={p[1]}")))
def test_any_override(override: str) -> None:
    _check(_load(yaml.safe_dump(BASE), (override,)))


def _plausible(field: str) -> st.SearchStrategy[str]:
    """Values of the type that a field has by default."""
    kind = type(DEFAULTS[field])
    if kind is bool:
        return st.sampled_from(["true", "false", "yes", "OFF", "${oc.env:YES}"])
    if kind is int:
        return st.integers(1, 64).map(str) | st.sampled_from(["0", "-1", "${oc.env:A}"])
    if kind is float:
        return st.floats(0.001, 0.9).map(str) | st.sampled_from(["1", "1e-5", "${oc.env:A}"])
    if kind is str:
        return st.sampled_from([str(DEFAULTS[field]) or "x", "x", "fully_async", "shuffle", "cosine", "${name}"])
    return st.sampled_from(["null", "3", "x", "{}", "[]", "1.5"])


def _defaults(model: Section, prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in type(model).model_fields:
        value = getattr(model, name)
        if isinstance(value, Section):
            found |= _defaults(value, f"{prefix}{name}.")
        elif name != "stages":
            found[prefix + name] = value
    return found


DEFAULTS = _defaults(Experiment())
SEEN: dict[bool, int] = {True: 0, False: 0}


@_quick
@given(
    st.lists(st.sampled_from(sorted(DEFAULTS)), min_size=1, max_size=3).flatmap(
        lambda fields: st.tuples(
            *(_plausible(field).map(lambda text, field=field: f"{field}={text}") for field in fields)
        )
    )
)
def test_plausible_values(overrides: tuple[str, ...]) -> None:
    submission = _load(yaml.safe_dump(BASE), overrides)
    SEEN[submission is not None] += 1
    _check(submission)


def test_both_ends_were_met() -> None:
    if sum(SEEN.values()) >= 100:
        assert min(SEEN.values()) > 10


@given(
    st.lists(st.one_of(st.integers(0, 99), st.text("abc_", min_size=1)), min_size=1).filter(
        lambda p: isinstance(p[0], str)
    )
)
def test_a_field_is_read_as_it_is_shown(path: list[str | int]) -> None:
    assert parse(show(tuple(path))) == tuple(path)

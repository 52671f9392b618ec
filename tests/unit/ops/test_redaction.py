"""Secrets do not print: fields by their names, URLs with a password in them, values that are secret by their class."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rftd.ops.redaction import MASK, Secret, has_url_credentials, is_secret_field, is_secret_map, redact


@pytest.mark.parametrize(
    "name",
    ["api_key", "apikey", "API_KEY", "hf_token", "token", "password", "db_passwd", "client_secret", "aws_credentials"],
)
def test_fields_that_hold_a_secret(name: str) -> None:
    assert is_secret_field(name)
    assert redact("hush", name) == MASK
    assert redact({"outer": {name: "hush"}}) == {"outer": {name: MASK}}
    assert redact(["hush", "hush"], name) == [MASK, MASK]
    assert redact("", name) == "", "an empty value tells that there is none"


@pytest.mark.parametrize(
    "name", ["max_tokens", "tokens", "tokenizer", "secretary", "passwords_file", "keys", "api", ""]
)
def test_fields_that_hold_none(name: str) -> None:
    assert not is_secret_field(name)
    assert redact("plain", name) == "plain"
    assert redact({name: ["plain", 1, None, True]}) == {name: ["plain", 1, None, True]}


def test_every_value_of_a_secret_map_is_masked_and_its_names_stay() -> None:
    assert is_secret_map("env_vars")
    assert not is_secret_map("labels")
    given = {"explorer": {"env_vars": {"PATH": "/bin", "N": 3}}, "labels": {"team": "a"}}
    assert redact(given) == {"explorer": {"env_vars": {"PATH": MASK, "N": MASK}}, "labels": {"team": "a"}}


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://rftd:hush@db/rftd", "postgresql://rftd:***@db/rftd"),
        ("postgresql://rftd:hush@db:5432/rftd?sslmode=require", "postgresql://rftd:***@db:5432/rftd?sslmode=require"),
        ("postgresql://rftd@db/rftd?password=hush", "postgresql://rftd@db/rftd?password=***"),
        ("postgresql://db/rftd?user=u&password=hush&port=1", "postgresql://db/rftd?user=u&password=***&port=1"),
        ("postgresql://u:hush@db/rftd?password=hush", "postgresql://u:***@db/rftd?password=***"),
        ("https://host/path?api%5Fkey=hush#part", "https://host/path?api%5Fkey=***#part"),
        ("http://:hush@host/", "http://:***@host/"),
        ("http://user:@host/", "http://user:***@host/"),
        ("http://u:hush@[::1]:99999/", "http://u:***@[::1]:99999/"),
        ("kafka://u:hu@sh@a:1,b:2/", "kafka://u:***@a:1,b:2/"),
    ],
)
def test_a_password_in_a_url_is_masked_and_the_account_stays(url: str, shown: str) -> None:
    assert has_url_credentials(url)
    assert redact(url) == shown
    assert redact({"url": [url]}) == {"url": [shown]}
    assert redact(shown) == shown, "once is enough"


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://rftd@db/rftd?sslmode=require",
        "http://127.0.0.1:7070/experiments?token=",
        "http://host/?max_tokens=5&q=password",
        "http://[::1",
        "file:///a/b",
        "a:b@c",
        "?password=hush",
        "://",
        "",
    ],
)
def test_what_holds_no_password_stays_as_it_is(text: str) -> None:
    assert not has_url_credentials(text)
    assert redact(text) == text


def test_a_secret_is_not_printed_by_accident() -> None:
    secret = Secret("hush")
    assert secret.reveal() == "hush"
    for shown in (str(secret), repr(secret), f"{secret}", f"{secret!r}", f"{[secret]}"):
        assert "hush" not in shown
        assert MASK in shown
    assert redact({"whatever": secret}) == {"whatever": MASK}
    assert secret != Secret("hush"), "comparing tells nothing"
    assert not hasattr(secret, "__dict__"), "no dump of its attributes shows it"


def test_all_below_a_secret_field_is_masked_but_for_the_variable_that_has_it() -> None:
    assert redact({"credentials": {"user": "u", "key": ["hush"]}}) == {"credentials": {"user": MASK, "key": MASK}}
    assert redact({"api_key": {"env": "JUDGE_KEY"}}) == {"api_key": {"env": "JUDGE_KEY"}}
    assert redact({"api_key": {"env": "JUDGE_KEY", "default": "hush"}}) == {"api_key": {"env": MASK, "default": MASK}}


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "tokens", "password", "hf_token"]), inner, max_size=3)
    ),
    max_leaves=12,
)


def _marked(value: Any, *, secret: bool = False) -> Any:
    """The value with each text below a secret field marked as one."""
    if isinstance(value, dict):
        return {key: _marked(item, secret=secret or is_secret_field(key)) for key, item in value.items()}
    if isinstance(value, list):
        return [_marked(item, secret=secret) for item in value]
    return f"hush {value}" if secret and isinstance(value, str) and value else value


@settings(deadline=None)
@given(VALUES)
def test_no_secret_text_survives_and_redacting_twice_changes_nothing(value: Any) -> None:
    marked = _marked(value)
    shown = redact(marked)
    assert "hush " not in repr(shown)
    assert redact(shown) == shown
    if "hush " not in repr(marked) and "password" not in repr(marked) and "hf_token" not in repr(marked):
        assert shown == marked

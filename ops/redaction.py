"""Secrets that print as `***`, and the test of what counts as one (rule 12: secrets stay home)."""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import unquote, urlsplit

MASK: Final = "***"
_NAME = re.compile(r"(^|_)(api_?key|token|password|passwd|secret|credentials?)$", re.IGNORECASE)
_WORDS: Final = frozenset(
    {"KEY", "KEYS", "APIKEY", "TOKEN", "TOKENS", "SECRET", "SECRETS", "PASSWORD", "PASSWD", "PASSPHRASE", "PASS", "PWD"}
    | {"CREDENTIAL", "CREDENTIALS", "CREDS", "AUTH", "AUTHORIZATION", "BEARER", "PRIVATE", "COOKIE", "SESSION", "DSN"}
    | {"CERT", "SIGNATURE", "WEBHOOK", "LICENSE", "PAT", "SAS", "JWT"}
)
"""Words in the names of variables whose values are secrets."""
_KEY: Final = re.compile(r"[A-Za-z0-9_+=.~-]{16,}")
_MAPS: Final = frozenset({"env_vars"})
# None begins with a repetition: over one long word of a line the search would take the square of its length.
_URL_PASSWORD: Final = re.compile(r"(://[^\s:/@]*:)[^\s@/]+@")
_ASSIGNMENT: Final = re.compile(
    r"(?i)((?:api_?key|token|password|passwd|secret|credentials?)[\"']?\s*[=:]\s*[\"']?)(?!\*\*\*)([^\s\"',;}]{4,})"
)
_BEARER: Final = re.compile(r"(?i)(bearer\s+)[\w.~+/=-]{8,}")


class Secret:
    """A value that is never printed, encoded or compared by accident; `reveal()` gives it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The secret itself; call it where it is used, nowhere else."""
        return self._value

    def __repr__(self) -> str:
        return f"Secret({MASK})"

    __str__ = __repr__


def is_secret_field(name: str) -> bool:
    """True if a field of this name holds a secret (`api_key`, `hf_token`, `password`, ...)."""
    return bool(_NAME.search(name))


def is_secret_map(name: str) -> bool:
    """True if every value of a mapping of this name is a secret (`env_vars`)."""
    return name in _MAPS


def is_plain_variable(name: str, value: object) -> bool:
    """True if a variable of the environment may be written openly: neither its name nor its value is like a secret's.

    A value that is long and mixes letters and digits in one word may be a key, whatever it is called.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return False
    if is_secret_field(name) or _WORDS & set(name.upper().split("_")):
        return False
    text = str(value)
    return len(text.splitlines()) <= 1 and not has_url_credentials(text) and not any(map(_is_key, text.split()))


def _is_key(word: str) -> bool:
    return _KEY.fullmatch(word) is not None and any(map(str.isdigit, word)) and any(map(str.isalpha, word))


def has_url_credentials(value: str) -> bool:
    """True if `value` is a URL with a password in it: before the host, or as a parameter, as PostgreSQL's may be."""
    try:
        parts = urlsplit(value)
        return "://" in value and (parts.password is not None or _masked_query(parts.query) != parts.query)
    except ValueError:
        return False


def mask_text(text: str) -> str:
    """The text without what looks like a secret in it."""
    text = _URL_PASSWORD.sub(rf"\g<1>{MASK}@", text)
    text = _BEARER.sub(rf"\g<1>{MASK}", text)
    return _ASSIGNMENT.sub(rf"\g<1>{MASK}", text)


def redact(value: Any, name: str = "") -> Any:
    """`value` with every secret replaced by `***`; for logs and error texts."""
    if isinstance(value, dict):
        # All below a secret field is secret, but for the name of the variable that has it.
        if is_secret_map(name) or (is_secret_field(name) and set(value) != {"env"}):
            return dict.fromkeys(value, MASK)
        return {key: redact(item, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact(item, name) for item in value]
    if isinstance(value, Secret) or (isinstance(value, str) and value and is_secret_field(name)):
        return MASK
    if isinstance(value, str) and has_url_credentials(value):
        # The user stays: it tells people which account is wrong, and is no secret.
        parts = urlsplit(value)
        host = parts.netloc.rpartition("@")[2]
        place = parts.netloc if parts.password is None else f"{parts.username or ''}:{MASK}@{host}"
        return parts._replace(netloc=place, query=_masked_query(parts.query)).geturl()
    return value


def _masked_query(query: str) -> str:
    """The parameters of a URL as they are written, those that hold a secret masked."""
    return "&".join(_masked_parameter(each) for each in query.split("&"))


def _masked_parameter(parameter: str) -> str:
    name, equals, value = parameter.partition("=")
    return f"{name}{equals}{MASK}" if value and is_secret_field(unquote(name)) else parameter

"""Secrets that print as `***`, and the test of what counts as one (rule 12: secrets stay home)."""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote, urlsplit

MASK: Final = "***"
_SECRET_WORDS: Final = frozenset(
    {"apikey", "token", "secret", "secrets", "password", "passwd", "passphrase", "passcode", "pwd", "auth", "bearer"}
    | {"credential", "credentials", "creds", "authorization", "cookie", "dsn", "jwt", "webhook"}
)
"""Last words of names whose values are secrets."""
_VARIABLE_WORDS: Final = frozenset(
    _SECRET_WORDS
    | {"key", "keys", "tokens", "passwords", "pass", "private", "session", "cert", "signature", "license", "pat", "sas"}
)
"""Words anywhere in the names of variables that are taken for secrets: whose variable it is, nobody here knows."""
_PARAMETER_WORDS: Final = frozenset({"key", "sig", "signature", "sas", "code"})
"""Names of parameters of URLs, and last words of them, that are secrets there alone."""
_ROW_KEYS: Final = frozenset(
    {"prompt", "response", "messages", "message", "tools", "image", "video", "audio", "workflow", "fn", "chosen"}
    | {
        "rejected",
        "completion",
        "category",
        "label",
        "answer",
        "question",
        "target",
        "text",
        "input",
        "output",
        "id",
        "index",
    }
    | {"sort", "group", "primary", "foreign", "partition", "hash", "cache", "idempotency", "idle", "reward", "stats"}
)
"""Words before `key` in the names of columns and entries, which are no secrets: `response_key`, `label_key`."""
_SLIP: Final = 0.8
"""The likeness of a word and its misspelling."""
_SUFFIXES: Final = frozenset({"value", "text", "b", "base", "hex"})
"""Words behind a name, digits aside, that say in what form the secret is: `token_b64`."""
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_JOINED: Final = re.compile(
    r"(?:api|access|secret|private|openai|hf|signing|master|service)key|"
    r"(?:auth|access|bearer|api|hf|session|refresh|id)token|"
    r"[a-z]*(?:password|passwd|passphrase|credentials?)|(?:client|app)secret"
)
"""Secrets whose name is a single word, such as `apikey` and `sslpassword`."""
_NAME_CHARS: Final = 256
_KEY: Final = re.compile(r"[A-Za-z0-9_+=.~-]{16,}")
_MAPS: Final = frozenset({"env_vars"})
# None begins with a repetition: over one long word of a line the search would take the square of its length.
_URL_PASSWORD: Final = re.compile(r"(://[^\s:/@]*:)[^\s@/]+@")
_NAMED: Final = re.compile(r"(?<![\w.-])[A-Za-z_][\w.-]{1,127}[\"']?\s{0,8}[=:]\s{0,8}[\"']?")
_REFERENCE: Final = r"\{\s?[\"']?env[\"']?\s?:\s?[\"']?[A-Z_][A-Z0-9_]{0,63}[\"']?\s?\}"
"""`{env: NAME}`: where a secret is, and not the secret itself."""
_MASKED: Final = r"(?:(?i:bearer|basic)\s+)?\*\*\*"
_BRACED: Final = r"\{[^{}\n]{1,200}\}"
_PLAIN: Final = r"(?:(?i:bearer|basic)\s+)?[^\s\"',;&}]{4,}"
_VALUE: Final = re.compile(f"(?!{_MASKED}|{_REFERENCE})(?:{_BRACED}|{_PLAIN})")
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
    """True if a field, variable, header or parameter of this name holds a secret (`api_key`, `x-api-key`, `hfToken`).

    `key` alone is none, nor is the name of a column (`response_key`).
    """
    words = _words(name)
    while len(words) > 1 and (words[-1].isdigit() or words[-1] in _SUFFIXES):
        words.pop()
    if not words:
        return False
    if words[-1] == "key":
        return len(words) > 1 and not _names_a_column(words[-2])
    return words[-1] in _SECRET_WORDS or _JOINED.fullmatch(words[-1]) is not None


@lru_cache(1024)
def _names_a_column(word: str) -> bool:
    # A typing error in one is none that hides a secret, and is told by the nearest name.
    return bool(get_close_matches(word, _ROW_KEYS, 1, _SLIP))


def _words(name: str) -> list[str]:
    """The words of a name in any spelling: `openaiKey`, `OPENAI-KEY` and `openai_key` have the same two."""
    # Names come from strangers: the end tells what a long one is.
    return [word.lower() for word in _WORD.findall(name[-_NAME_CHARS:])]


def is_secret_map(name: str) -> bool:
    """True if every value of a mapping of this name is a secret (`env_vars`)."""
    return name in _MAPS


def is_plain_variable(name: str, value: object) -> bool:
    """True if a variable of the environment may be written openly: neither its name nor its value is like a secret's.

    A value that is long and mixes letters and digits in one word may be a key, whatever it is called.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return False
    if is_secret_field(name) or not _VARIABLE_WORDS.isdisjoint(_words(name)):
        return False
    text = str(value)
    return len(text.splitlines()) <= 1 and not has_url_credentials(text) and not any(map(_is_key, text.split()))


def _is_key(word: str) -> bool:
    return _KEY.fullmatch(word) is not None and any(map(str.isdigit, word)) and any(map(str.isalpha, word))


def has_url_credentials(value: str) -> bool:
    """True if `value` is a URL with a password in it: before the host, or as a parameter (`?key=...`)."""
    try:
        parts = urlsplit(value)
        return "://" in value and (parts.password is not None or _masked_query(parts.query) != parts.query)
    except ValueError:
        return False


def mask_text(text: str) -> str:
    """The text without what looks like a secret in it."""
    text = _URL_PASSWORD.sub(rf"\g<1>{MASK}@", text)
    text = _BEARER.sub(rf"\g<1>{MASK}", text)
    kept = []
    at = 0
    for named in _NAMED.finditer(text):
        if named.start() < at or not is_secret_field(named[0].rstrip("\"'=: \t")):
            continue
        if value := _VALUE.match(text, named.end()):
            kept += [text[at : named.end()], MASK]
            at = value.end()
    return "".join((*kept, text[at:]))


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
    return f"{name}{equals}{MASK}" if value and _is_secret_parameter(unquote(name)) else parameter


def _is_secret_parameter(name: str) -> bool:
    return is_secret_field(name) or _words(name)[-1:] in [[word] for word in _PARAMETER_WORDS]

"""Secrets that print as `***`, and the rules for recognising secrets, which must never leave the user's machine."""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote, urlsplit

MASK: Final = "***"
"""Text shown in place of a secret."""
_SECRET_WORDS: Final = frozenset(
    {"apikey", "token", "secret", "secrets", "password", "passwd", "passphrase", "passcode", "pwd", "auth", "bearer"}
    | {"credential", "credentials", "creds", "authorization", "cookie", "dsn", "jwt", "webhook"}
)
"""Last words of names whose values are secrets."""
_VARIABLE_WORDS: Final = frozenset(
    _SECRET_WORDS
    | {"key", "keys", "tokens", "passwords", "pass", "private", "session", "cert", "signature", "license", "pat", "sas"}
)
"""Words anywhere in the names of variables taken for secrets, because nobody here knows whose variables they are."""
_PARAMETER_WORDS: Final = frozenset({"key", "sig", "signature", "sas", "code"})
"""Names, or last words of names, that are secrets only as URL parameters."""
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
        "field",
    }
    | {"sort", "group", "primary", "foreign", "partition", "hash", "cache", "idempotency", "idle", "reward", "stats"}
)
"""Words before `key` in the names of columns and entries, which are no secrets: `response_key`, `label_key`."""
_SLIP: Final = 0.8
"""Minimum similarity, from 0 to 1 by `difflib`, of a misspelt word to the word meant."""
_SUFFIXES: Final = frozenset({"value", "text", "b", "base", "hex"})
"""Trailing words of a name, besides digits, that state the form of the secret: `token_b64`."""
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
"""A word of a name in any style."""
_JOINED: Final = re.compile(
    r"(?:api|access|secret|private|openai|hf|signing|master|service)key|"
    r"(?:auth|access|bearer|api|hf|session|refresh|id)token|"
    r"[a-z]*(?:password|passwd|passphrase|credentials?)|(?:client|app)secret"
)
"""Secrets with a single-word name, such as `apikey` and `sslpassword`."""
_NAME_CHARS: Final = 256
"""Maximum length of a name examined."""
_KEY: Final = re.compile(r"[A-Za-z0-9_+=.~-]{16,}")
"""A text that looks like a key."""
_MAPS: Final = frozenset({"env_vars"})
"""Mappings of environment variables."""
# No pattern begins with a repetition: the search over a long word would take quadratic time.
_URL_PASSWORD: Final = re.compile(r"(://[^\s:/@]*:)[^\s@/]+@")
"""A password in a URL."""
_NAMED: Final = re.compile(r"(?<![\w.-])[A-Za-z_][\w.-]{1,127}[\"']?\s{0,8}[=:]\s{0,8}[\"']?")
"""A name followed by `=` or `:`."""
_REFERENCE: Final = r"\{\s?[\"']?env[\"']?\s?:\s?[\"']?[A-Z_][A-Z0-9_]{0,63}[\"']?\s?\}"
"""`{env: NAME}`: the location of a secret, not the secret itself."""
_MASKED: Final = r"(?:(?i:bearer|basic)\s+)?\*\*\*"
"""A value already masked."""
_BRACED: Final = r"\{[^{}\n]{1,200}\}"
"""A value in braces."""
_PLAIN: Final = r"(?:(?i:bearer|basic)\s+)?[^\s\"',;&}]{4,}"
"""A value without braces."""
_VALUE: Final = re.compile(f"(?!{_MASKED}|{_REFERENCE})(?:{_BRACED}|{_PLAIN})")
"""A value to be masked."""
_BEARER: Final = re.compile(r"(?i)(bearer\s+)[\w.~+/=-]{8,}")
"""A token of an Authorization header."""


class Secret:
    """A value protected against being printed, encoded or compared by accident; `reveal()` returns it."""

    __slots__ = ("_value",)

    def __init__(self, secret: str) -> None:
        """Protects the text `secret`."""
        self._value = secret

    def reveal(self) -> str:
        """Returns the secret; to be called only at the point of use."""
        return self._value

    def __repr__(self) -> str:
        return f"Secret({MASK})"

    __str__ = __repr__


def is_secret_field(name: str) -> bool:
    """True if a field, variable, header or parameter of the name holds a secret (`api_key`, `x-api-key`, `hfToken`).

    `key` alone is no secret, nor is the name of a column (`response_key`).
    """
    words = _words(name)
    while len(words) > 1 and (words[-1].isdigit() or words[-1] in _SUFFIXES):
        words.pop()
    if not words:
        return False
    if words[-1] == "key":
        words = [word for word in words if not word.isdigit()]  # `answer1_key` names a column like `answer_key`
        return len(words) > 1 and not _names_a_column(words[-2])
    return words[-1] in _SECRET_WORDS or _JOINED.fullmatch(words[-1]) is not None


@lru_cache(1024)
def _names_a_column(word: str) -> bool:
    # A misspelt column name hides no secret, and is reported with the nearest name elsewhere.
    """True if the word before `key` names a column or an entry, even when misspelt."""
    return bool(get_close_matches(word, _ROW_KEYS, 1, _SLIP))


def _words(name: str) -> list[str]:
    """Returns the words of a name in lower case and in any spelling: `openaiKey`, `OPENAI-KEY` and `openai_key` all
    give `openai` and `key`.
    """
    # Names come from untrusted sources: the end of a long name decides.
    return [word.lower() for word in _WORD.findall(name[-_NAME_CHARS:])]


def is_secret_map(name: str) -> bool:
    """True if every value of a mapping of the name is a secret (`env_vars`)."""
    return name in _MAPS


def is_plain_variable(name: str, content: object) -> bool:
    """True if an environment variable's value may be shown: neither name nor `content` resembles a secret.

    A long word mixing letters and digits may be a key, under any name.
    """
    if isinstance(content, bool) or not isinstance(content, str | int | float):
        return False
    if is_secret_field(name) or not _VARIABLE_WORDS.isdisjoint(_words(name)):
        return False
    text = str(content)
    return len(text.splitlines()) <= 1 and not has_url_credentials(text) and not any(map(_is_key, text.split()))


def _is_key(word: str) -> bool:
    """True for a long word of letters and digits, as API keys are."""
    return _KEY.fullmatch(word) is not None and any(map(str.isdigit, word)) and any(map(str.isalpha, word))


def has_url_credentials(text: str) -> bool:
    """True if `text` is a URL with a password: before the host, or as a parameter (`?key=...`)."""
    try:
        parts = urlsplit(text)
        return "://" in text and (parts.password is not None or _masked_query(parts.query) != parts.query)
    except ValueError:
        return False


def mask_text(text: str) -> str:
    """Returns the text with apparent secrets masked: passwords in URLs, bearer tokens, and values of secret names."""
    text = _URL_PASSWORD.sub(rf"\g<1>{MASK}@", text)
    text = _BEARER.sub(rf"\g<1>{MASK}", text)
    pieces = []
    at = 0
    for named in _NAMED.finditer(text):
        if named.start() < at or not is_secret_field(named[0].rstrip("\"'=: \t")):
            continue
        if secret := _VALUE.match(text, named.end()):
            pieces += [text[at : named.end()], MASK]
            at = secret.end()
    return "".join((*pieces, text[at:]))


def redact(content: Any, name: str = "") -> Any:
    """Returns `content` with every secret replaced by `***`; for logs and error texts."""
    if isinstance(content, dict):
        # Everything below a secret field is secret, except the name of the secret's variable.
        if is_secret_map(name) or (is_secret_field(name) and set(content) != {"env"}):
            return dict.fromkeys(content, MASK)
        return {key: redact(inner, str(key)) for key, inner in content.items()}
    if isinstance(content, list | tuple):
        return [redact(inner, name) for inner in content]
    if isinstance(content, Secret) or (isinstance(content, str) and content and is_secret_field(name)):
        return MASK
    if isinstance(content, str) and has_url_credentials(content):
        # The user name stays: the name identifies the account, and is not secret.
        parts = urlsplit(content)
        host = parts.netloc.rpartition("@")[2]
        authority = parts.netloc if parts.password is None else f"{parts.username or ''}:{MASK}@{host}"
        return parts._replace(netloc=authority, query=_masked_query(parts.query)).geturl()
    return content


def _masked_query(query: str) -> str:
    """Returns the parameters of a URL as written, with secrets masked."""
    return "&".join(_masked_parameter(parameter) for parameter in query.split("&"))


def _masked_parameter(parameter: str) -> str:
    """Returns a URL parameter, with a secret value masked."""
    name, equals, parameter_value = parameter.partition("=")
    return f"{name}{equals}{MASK}" if parameter_value and _is_secret_parameter(unquote(name)) else parameter


def _is_secret_parameter(name: str) -> bool:
    """True for a parameter of a URL whose name means a secret."""
    return is_secret_field(name) or _words(name)[-1:] in [[word] for word in _PARAMETER_WORDS]

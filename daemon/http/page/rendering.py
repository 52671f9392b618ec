"""`render`: a template with its view; every text is escaped, and hidden characters are shown in Python's notation."""

from __future__ import annotations

import re
import shlex
from functools import cache
from typing import Any, Final
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from rftd.daemon.cli.output.quantity import age, size
from rftd.daemon.http.page import formats
from rftd.daemon.http.page.alarms import is_off_policy
from rftd.daemon.http.page.assets import FOLDER, address_of, release
from rftd.ops.clock import Clock, iso

_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)
"""Control characters, characters changing the direction of text, invisible ones, and halves of surrogate pairs."""


def render(template: str, clock: Clock, **context: Any) -> str:
    """Returns a template as HTML; ages are measured by `clock`."""

    def ago(time_ns: int | None) -> str:
        return age(time_ns, clock)

    return _environment().get_template(template).render(ago=ago, now_ms=clock.now_ns() // 1_000_000, **context)


def visible(text: Any) -> Any:
    """Returns an output of a template with hidden characters in Python's notation; empty for None."""
    if text is None:
        return ""
    if not isinstance(text, str) or isinstance(text, Markup):
        return text
    return _HIDDEN.sub(lambda match: match[0].encode("unicode_escape", "backslashreplace").decode(), text)


@cache
def _environment() -> Environment:
    """Returns the environment of the page's templates, made once: escaping by default, unknown names an error."""
    environment = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=visible,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.globals |= {"static": address_of, "release": release, "is_off_policy": is_off_policy}
    environment.filters |= {
        "fixed": formats.fixed,
        "signed": formats.signed,
        "percent": formats.percent,
        "count": formats.count,
        "compact": formats.compact,
        "span": formats.span,
        "size": size,
        "ordinal": formats.ordinal,
        "spark_points": formats.spark_points,
        "iso": iso,
        "segment": _segment,
        "shell": shlex.quote,
    }
    return environment


def _segment(text: str) -> str:
    """Returns a text as one segment of a path."""
    return quote(text, safe="")

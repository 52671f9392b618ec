"""Texts that strangers write into names, answers and reasons, and what a page made of them may hold."""

from __future__ import annotations

import re
from html.parser import HTMLParser

HOSTILE = {
    "script": "<script>alert(1)</script>",
    "image": "<img src=x onerror=alert(1)>",
    "vector image": "<svg/onload=alert(1)>",
    "closing": "</td></table></div></svg></style></title><script>alert(1)</script>",
    "attribute": '" onmouseover="alert(1)',
    "apostrophe": "' onfocus='alert(1)' autofocus='",
    "comment": "--><!--><b>",
    "entity": "&lt;script&gt;&#60;script&#62;&amp;",
    "link": "javascript:alert(1)",
    "style": "</style><style>*{background:url(http://evil.example/x)}",
    "template": "{{7*7}}${7*7}<%= 7*7 %>",
    "terminal": "\x1b[2J\x1b]0;title\x07\x9b31m",
    "nul": "a\x00b\x08\x7f",
    "bidirectional": "user\u202e\u2066nimda\u2069\u200f\u061c",
    "invisible": "a\u200bb\ufeffc\u2060",
    "separator": "a\u2028b\u2029c",
    "half": "a\ud800b\udfff",
    "newlines": "a\r\n\r\nb",
}
LONG = "x" * 10_000_000

_TAGS = frozenset(
    """html head meta title style body main header section details summary h1 h2 h3 div span p b small pre code table
    thead tbody tr th td ul li svg polyline polygon rect line text g br hr""".split()  # noqa: SIM905
)
_ATTRIBUTES = frozenset(
    """style class charset name content http-equiv lang xmlns viewbox width height role points fill stroke open
    stroke-width stroke-linecap stroke-linejoin stroke-dasharray x y x1 y1 x2 y2 font-size opacity text-anchor colspan
    dir""".split()  # noqa: SIM905
)
_HIDDEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
_FETCHES = re.compile(r"url\(|@import|expression\(|https?:", re.IGNORECASE)


def faults_of(page: str) -> list[str]:
    """What a page holds and must not: foreign elements, attributes that run or fetch, hidden characters."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    hidden = [f"hidden {match[0]!r}" for match in _HIDDEN.finditer(page)]
    return reader.faults + hidden + [f"open <{name}>" for name in reader.open]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.faults: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _TAGS:
            self.faults.append(f"<{tag}>")
        for name, words in attrs:
            fetches = _FETCHES.search(words or "") and name != "xmlns"
            if name not in _ATTRIBUTES or fetches:
                self.faults.append(f"<{tag} {name}={words!r:.80}>")
        if tag not in ("meta", "br", "hr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}>")

    def handle_comment(self, data: str) -> None:
        self.faults.append("comment")

    def handle_decl(self, decl: str) -> None:
        if decl.lower() != "doctype html":
            self.faults.append("declaration")

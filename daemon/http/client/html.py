"""`tag` and `text`: HTML escaped by construction, and curves as inline SVG; no script, no request to anywhere."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence
from typing import Final

MOST_CHARACTERS: Final = 20_000
"""Maximum number of characters of one text on a page."""
_VOID: Final = frozenset({"meta", "br", "hr"})
"""Elements without an end tag."""
_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)
"""Control characters except tab and newline, characters changing the direction of text, invisible ones, and halves of
surrogate pairs.
"""


class Html(str):
    """Finished HTML, inserted unchanged by `tag`."""

    __slots__ = ()


def text(words: str, *, most: int = MOST_CHARACTERS) -> Html:
    """Returns foreign text as HTML: escaped, with hidden characters in Python's notation, and cut after `most`
    characters, followed by the number of characters left out.
    """
    cut = words[:most]
    cut_off = len(words) - len(cut)
    visible = _HIDDEN.sub(lambda match: match[0].encode("unicode_escape", "backslashreplace").decode(), cut)
    return Html(html.escape(visible) + (f" … {cut_off:,} more characters" if cut_off else ""))


def tag(name: str, *children: str | None, **attributes: str | float | None) -> Html:
    """Returns an element; children and attributes are escaped except `Html`, and None is left out.

    An underscore at the end of an attribute's name is dropped, as in `class_`; inner ones become hyphens.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(str(attribute))}"'
        for key, attribute in attributes.items()
        if attribute is not None
    )
    if name in _VOID:
        return Html(f"<{name}{written}>")
    inner = "".join(child if isinstance(child, Html) else text(child) for child in children if child is not None)
    return Html(f"<{name}{written}>{inner}</{name}>")


def block(words: str, *, most: int = MOST_CHARACTERS) -> Html:
    """Returns foreign text as a monospaced block that keeps its line breaks, and breaks long lines anywhere if they
    have no blanks; cut as by `text`.
    """
    style = "white-space:pre-wrap;overflow-wrap:anywhere;unicode-bidi:isolate;font-family:monospace;text-align:left"
    return tag("div", text(words, most=most), style=style)


def definitions(lines: Sequence[tuple[str, str]]) -> Html:
    """Returns pairs of a label and its words as a table."""
    style = "text-align:left;padding-right:1em"
    return tag("table", *(tag("tr", tag("th", label, style=style), tag("td", words)) for label, words in lines))


def curve(
    points: Sequence[tuple[float, float]],
    *,
    label: str,
    band: Sequence[tuple[float, float, float]] = (),
    width: int = 320,
    height: int = 80,
) -> Html:
    """Returns points (x, y), ascending by x, as an SVG curve with its ranges as text; empty without a finite point.

    Non-finite points are gaps. `band` has (x, lower end, upper end), ascending by x, filled behind the curve if at
    least two are finite. `width` and `height` are pixels.
    """
    band = [(x, down, up) for x, down, up in band if math.isfinite(down) and math.isfinite(up)]
    finite = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    if not finite:
        return Html("")
    low = min([y for _, y in finite] + [down for _, down, _ in band])
    high = max([y for _, y in finite] + [up for _, _, up in band])
    first = finite[0][0]
    last = finite[-1][0]

    def at(x: float, y: float) -> str:
        """Returns the SVG coordinates `x,y` of a point; a range without extent puts it in the middle."""
        across = (x - first) / (last - first) if last > first else 0.5
        up = (y - low) / (high - low) if high > low else 0.5
        return f"{4 + (width - 8) * across:.1f},{height - 16 - (height - 32) * up:.1f}"

    pieces: list[list[str]] = [[]]
    for x, y in points:
        if math.isfinite(x) and math.isfinite(y):
            pieces[-1].append(at(x, y))
        elif pieces[-1]:
            pieces.append([])
    # A line of a single point has no length: drawn twice, its round caps make a dot.
    lines = [_polyline(piece if len(piece) > 1 else piece * 2) for piece in pieces if piece]
    edge = [at(x, up) for x, _, up in band] + [at(x, down) for x, down, _ in reversed(band)]
    area = tag("polygon", points=" ".join(edge), fill="#3b7dd8", opacity=0.18) if len(band) > 1 else None
    return tag(
        "svg",
        tag("title", f"{label}: {low:.4g} to {high:.4g}"),
        area,
        *lines,
        _caption(f"{label}  {finite[-1][1]:.4g}", 10),
        _caption(f"{low:.4g} to {high:.4g}; {first:g} to {last:g}", height - 2),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        role="img",
    )


def _polyline(points: Sequence[str]) -> Html:
    """Returns an SVG line through points given as coordinates `x,y`."""
    return tag(
        "polyline",
        points=" ".join(points),
        fill="none",
        stroke="#3b7dd8",
        stroke_width=1.5,
        stroke_linecap="round",
        stroke_linejoin="round",
    )


def _caption(words: str, y: float) -> Html:
    """Returns a small text at the left edge, `y` pixels from the top."""
    return tag("text", words, x=4, y=y, font_size=10, fill="currentColor")

"""`KeysView`: a run by the keyboard, in a terminal: what happens now, curves, groups of rollouts, and answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rftd.daemon.cli.output.quantity import number, sparkline
from rftd.daemon.cli.output.terminal import cells, fitted, one_line
from rftd.daemon.cli.verbs.get import reason_of, signal_words
from rftd.ops.errors import RftdError

if TYPE_CHECKING:
    from rftd.daemon.http.client.client import Client
    from rftd.daemon.http.client.rollouts import TextRollout

_RENEW_MS: Final = 2000
"""Milliseconds without a key until the view is read anew."""
_FIGURES: Final = 32
"""Maximum number of curves, as in one answer of the daemon."""
_POINTS: Final = 200
"""Maximum number of points of a curve."""
_TASKS: Final = 200
"""Number of newest groups listed."""
_HELP: Final = (
    "1 2 3         now, curves, groups",
    "j k, arrows   next, previous; in an answer: next, previous answer",
    "enter         open: a curve large, a group's answers",
    "space b       an answer's next, previous page",
    "r             read anew",
    "esc           back",
    "q             quit; the run continues",
)
"""Keys with their effects, line by line."""
_TABS: Final = {"1": "now", "2": "curves", "3": "groups"}
"""Views by the key opening each."""


class ScreenLine(NamedTuple):
    """A line of the screen, drawn reversed if chosen."""

    text: str
    is_chosen: bool = False


class KeysView:
    """One run as views opened by keys; a view is read when opened, and anew by `renew`."""

    def __init__(self, client: Client, name: str) -> None:
        """Finds the run. Raises NotFoundError."""
        self._client = client
        self._run = client.run(name)
        self._page = client.run(name).page()
        self._view = "now"
        self._chosen: dict[str, int] = {}
        self._first_line = 0
        self._notice = ""
        self._waits: list[str] = []
        self._curves: list[tuple[str, list[tuple[float, float]]]] = []
        self._groups: list[Any] = []
        self._answers: list[TextRollout] = []
        self._back: dict[str, str] = {"curve": "curves", "answer": "groups", "help": "now"}
        self.renew()

    def renew(self) -> None:
        """Reads the view anew; without an answer, the view stays and the reason is shown."""
        self._notice = ""
        try:
            self._page = self._run.page()
            readers: dict[str, Callable[[], None]] = {
                "now": self._read_waits,
                "curves": self._read_curves,
                "curve": self._read_curves,
                "groups": self._read_groups,
            }
            if self._view in readers:
                readers[self._view]()
        except RftdError as error:
            self._notice = f"not renewed: {error.what}"

    def press(self, key: str) -> bool:
        """Carries a key out; False for the key that leaves."""
        if key == "q":
            return False
        if key in _TABS:
            self._open(_TABS[key])
        elif key == "?":
            self._back["help"] = self._view
            self._view = "help"
        elif key == "esc":
            self._view = self._back.get(self._view, "now")
        elif key == "r":
            self.renew()
        elif key in ("j", "k"):
            self._move(1 if key == "j" else -1)
        elif key in ("space", "b"):
            self._first_line = max(0, self._first_line + (10 if key == "space" else -10))
        elif key == "enter":
            self._enter()
        return True

    def lines(self, width: int, height: int) -> list[ScreenLine]:
        """Returns the screen: at most `height` lines of at most `width` cells."""
        summary = self._page.experiment.summary
        tabs = "  ".join(f"[{name}]" if name == self._view else f"{key} {name}" for key, name in _TABS.items())
        title = f"{summary.name}  {summary.state}  step {summary.step}/{summary.total_steps}"
        title += f"  reward {number(summary.reward_mean)}"
        above = [ScreenLine(title), ScreenLine(f"{tabs}   ? keys  q leave"), ScreenLine(self._notice)]
        room = max(1, height - len(above))
        drawn: dict[str, Callable[[], Iterator[ScreenLine]]] = {
            "now": self._now_lines,
            "curves": lambda: self._curve_lines(width),
            "curve": lambda: self._plot_lines(width, room),
            "groups": self._group_lines,
            "answer": lambda: self._answer_lines(width),
            "help": lambda: map(ScreenLine, _HELP),
        }
        body = list(drawn[self._view]())
        chosen = next((index for index, line in enumerate(body) if line.is_chosen), None)
        if self._view == "answer":
            self._first_line = min(self._first_line, max(0, len(body) - room))
            first = self._first_line
        else:
            first = 0 if chosen is None else max(0, chosen - room + 1)
        shown = [*above, *body[first : first + room]]
        return [ScreenLine(_fit(line.text, width), line.is_chosen) for line in shown[:height]]

    def _open(self, view: str) -> None:
        """Opens one of the views with a key of their own."""
        self._view = view
        self.renew()

    def _move(self, by: int) -> None:
        """Chooses the next or the previous line or answer."""
        lists: dict[str, list[Any]] = {
            "curves": self._curves,
            "curve": self._curves,
            "groups": self._groups,
            "answer": self._answers,
        }
        if self._view in lists:
            last = max(0, len(lists[self._view]) - 1)
            key = "curves" if self._view == "curve" else self._view
            self._chosen[key] = min(last, max(0, self._chosen.get(key, 0) + by))
            self._first_line = 0

    def _enter(self) -> None:
        """Opens the chosen curve or group."""
        if self._view == "curves" and self._curves:
            self._view = "curve"
        elif self._view == "groups" and self._groups:
            group = self._groups[min(self._chosen.get("groups", 0), len(self._groups) - 1)]
            try:
                self._answers = list(self._run.group(group.id).rollouts)
            except RftdError as error:
                self._notice = error.what
                return
            self._chosen["answer"] = 0
            self._first_line = 0
            self._view = "answer"

    def _read_waits(self) -> None:
        """Reads the work or wait of each role."""
        self._waits = [
            f"{wait.role}{'' if wait.slot is None else f' {wait.slot}'}  {wait.waiting_for}"
            for wait in self._run.why().waits
        ]

    def _read_curves(self) -> None:
        """Reads the curves of all figures, at most as many as one answer of the daemon holds."""
        from rftd.daemon.http.views import series as series_views

        described = self._client.ask(series_views.series, runs=[self._run.id], points=1).value.runs
        listed = [name for run in described for name in run.metrics]
        names = sorted(listed, key=lambda name: name != series_views.REWARD_BANDS)[:_FIGURES]
        points: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
        for point in self._run.series(*names, points=_POINTS) if names else ():
            if point.mean is not None and point.metric in points:
                points[point.metric].append((point.at, point.mean))
        self._curves = [(name, line) for name, line in points.items() if line]

    def _read_groups(self) -> None:
        """Reads the newest groups for the view `groups`."""
        self._groups = list(self._run.tasks(limit=_TASKS))

    def _now_lines(self) -> Iterator[ScreenLine]:
        """Yields what happens now, and the wait of each role."""
        page = self._page
        if page.moment is not None:
            yield ScreenLine(page.moment.sentence)
            yield ScreenLine(f"{page.moment.progress}  {page.moment.pace_words}")
        yield ScreenLine("reward  " + sparkline([point.reward_mean for point in page.reward_curve], width=60))
        texts = [signal_words(page.signal), reason_of(page.experiment.summary), *page.experiment.warnings, *self._waits]
        texts += [f"held out: {row.taskset}, version {row.version}: {number(row.score)}" for row in page.evals]
        yield from (ScreenLine(text) for text in texts if text)

    def _curve_lines(self, width: int) -> Iterator[ScreenLine]:
        """Yields a line for each curve: name, curve, last figure, range."""
        wide = min(36, max((len(name) for name, _ in self._curves), default=0))
        for index, (name, line) in enumerate(self._curves):
            figures = [figure for _, figure in line]
            spark = sparkline(figures, width=max(8, width - wide - 40))
            bounds = f"{number(figures[-1])}  ({number(min(figures))} to {number(max(figures))})"
            yield ScreenLine(
                f"{one_line(name)[:wide]:<{wide}}  {spark}  {bounds}", index == self._chosen.get("curves", 0)
            )
        if not self._curves:
            yield ScreenLine("no step was trained yet")

    def _plot_lines(self, width: int, height: int) -> Iterator[ScreenLine]:
        """Yields the chosen curve large: a column for each part of the steps, in eighths of a line."""
        name, line = self._curves[min(self._chosen.get("curves", 0), len(self._curves) - 1)]
        figures = [figure for _, figure in line if math.isfinite(figure)]
        yield ScreenLine(f"{name}  {number(line[-1][1])} at {line[-1][0]:g}")
        if not figures:
            return
        low, high = min(figures), max(figures)
        rows = max(1, height - 3)
        columns = max(1, min(len(figures), width))
        levels: list[int] = []
        for column in range(columns):
            column_figures = figures[column * len(figures) // columns : (column + 1) * len(figures) // columns]
            share = 0.5 if high == low else (sum(column_figures) / len(column_figures) - low) / (high - low)
            levels.append(1 + round(share * (rows * 8 - 1)))
        for row in range(rows - 1, -1, -1):
            yield ScreenLine("".join(" ▁▂▃▄▅▆▇█"[min(8, max(0, level - row * 8))] for level in levels))
        yield ScreenLine(f"{number(low)} to {number(high)}; {line[0][0]:g} to {line[-1][0]:g}")

    def _group_lines(self) -> Iterator[ScreenLine]:
        """Yields a line for each group, the newest first."""
        for index, group in enumerate(self._groups):
            failed = f", {group.failed} failed" if group.failed else ""
            row = "" if group.row is None else f"row {group.row}, "
            words = f"task {group.sequence}: {row}{group.members} answers{failed}, reward {number(group.reward_mean)}"
            yield ScreenLine(f"{words}  {group.reason or ''}".rstrip(), index == self._chosen.get("groups", 0))
        if not self._groups:
            yield ScreenLine("no group is closed yet")

    def _answer_lines(self, width: int) -> Iterator[ScreenLine]:
        """Yields one answer of the group, with its figures and texts."""
        from rftd.daemon.http.client.rollouts import labelled_texts

        if not self._answers:
            yield ScreenLine("no answer of this group succeeded")
            return
        chosen = min(self._chosen.get("answer", 0), len(self._answers) - 1)
        rollout = self._answers[chosen]
        row = rollout.view.rollout.experience
        yield ScreenLine(
            f"answer {chosen + 1} of {len(self._answers)}  reward {number(row.reward)}  {row.finish}  "
            f"{row.response_tokens} tokens  {row.state}"
        )
        for label, text in labelled_texts(rollout):
            yield ScreenLine("")
            yield ScreenLine(f"{one_line(label)}:")
            yield from (ScreenLine(line) for line in fitted(text, max(8, width)).split("\n"))


def _fit(text: str, width: int) -> str:
    """Returns a text in one line of at most `width` cells, without characters controlling the terminal."""
    line = one_line(text)
    while cells(line) > width:
        line = line[: max(0, len(line) - max(1, (cells(line) - width + 1) // 2))]
    return line


def browse(client: Client, name: str) -> None:
    """Shows the run in the terminal until the key `q` or Ctrl-C; stops nothing."""
    import curses
    import locale

    locale.setlocale(locale.LC_ALL, "")
    view = KeysView(client, name)
    with suppress(KeyboardInterrupt):
        curses.wrapper(lambda screen: _loop(view, screen))


def _loop(view: KeysView, screen: Any) -> None:
    """Draws the view, and carries keys out; reads anew after two seconds without a key."""
    import curses

    names = {curses.KEY_DOWN: "j", curses.KEY_UP: "k", curses.KEY_ENTER: "enter", curses.KEY_NPAGE: "space"}
    names |= {curses.KEY_PPAGE: "b", curses.KEY_LEFT: "esc", curses.KEY_RIGHT: "enter", curses.KEY_BACKSPACE: "esc"}
    names |= {10: "enter", 13: "enter", 27: "esc", 32: "space"}
    curses.set_escdelay(25)
    with suppress(curses.error):  # a terminal without a hidden cursor
        curses.curs_set(0)
    screen.timeout(_RENEW_MS)
    while True:
        height, width = screen.getmaxyx()
        screen.erase()
        for row, line in enumerate(view.lines(width - 1, height)):
            with suppress(curses.error):  # a terminal made smaller meanwhile
                screen.addstr(row, 0, line.text, curses.A_REVERSE if line.is_chosen else curses.A_NORMAL)
        screen.refresh()
        pressed = screen.getch()
        if pressed == -1:
            view.renew()
        elif not view.press(names.get(pressed) or (chr(pressed) if 0 <= pressed < 256 else "")):
            return

"""Weights of the next groups under a synchronisation schedule: which version each group begins with, or what it waits
for.

The version of a window is in its leases, so a restart folds it and decides nothing anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import count
from typing import NamedTuple

import msgspec

from rftd.streams.events.weights import WeightsOverdue, WeightsRequested
from rftd.streams.folds.groups import GroupWindow
from rftd.streams.folds.run_state import RunState
from rftd.streams.spec.schedule import has_windows, step_of_window, window_of, window_steps
from rftd.streams.spec.spec import StageSpec
from rftd.workers.control.holds import AwaitsAnswer, AwaitsWeights, SyncPoint, WindowHold
from rftd.workers.control.policies.policy import PolicyView


class Ask(NamedTuple):
    """The next group needs newer weights, to be requested from the trainer first."""

    window: int
    """Window that waits for the weights."""
    number: int = 0
    """Number of the request within the stage."""


class Begin(NamedTuple):
    """A group may begin: its weight version, its window, and its position within the window."""

    version: int
    """Weight version with which the group begins."""
    window: int = -1
    """Number of the window; -1 for a schedule without windows, whose groups are not bound to one version."""
    place: int = -1
    """Position of the group within the window, from 0; -1 without a window."""


def beginnings(
    state: RunState, stage: StageSpec, view: PolicyView, *, outstanding: int | None = None
) -> Iterator[Begin | Ask | WindowHold]:
    """Yields how the next groups begin, in order, up to the first request or hold; without either, endlessly.

    `outstanding` is the number of unfinished groups, by default taken from the state.
    """
    last = state.groups.windows.get(state.spine.stage)
    outstanding = state.groups.to_close if outstanding is None else outstanding
    announced = _Announced(state)
    for number in count():
        beginning = _Next(state, stage, announced, feeds_step(view, number), last, outstanding + number).begin()
        yield beginning
        if not isinstance(beginning, Begin):
            return
        if beginning.window >= 0:
            last = GroupWindow(beginning.window, beginning.place, beginning.version)


def admission_view(stage: StageSpec, view: PolicyView) -> PolicyView:
    """Returns the policy's view for admission: with `explorer_driven`, the trainer's newest weights count as published,
    since a request publishes them.
    """
    if stage.synchronizer.sync_style != "explorer_driven":
        return view
    return msgspec.structs.replace(view, published_version=view.version)


def feeds_step(view: PolicyView, number: int) -> int:
    """Returns the step of the stage, from 1, whose batch will use the group started after `number` further ones.

    The dataset position cannot tell: failed and stale groups were replaced by later ones, and a batch may have been
    planned incomplete.
    """
    supply = view.waiting_experiences + view.inflight_rollouts + number * view.repeat_times
    return view.planned_steps + 1 + supply // view.batch_size


def request_of(state: RunState, ask: Ask) -> WeightsRequested:
    """Builds the event requesting newer weights from the trainer."""
    last = state.groups.windows.get(state.spine.stage)
    return WeightsRequested(
        stage=state.spine.stage, window=ask.window, number=ask.number, version=last.version if last else -1
    )


def overdue_of(
    state: RunState, stage: StageSpec, view: PolicyView, hold: AwaitsAnswer | AwaitsWeights, waited_s: float
) -> WeightsOverdue:
    """Builds the event ending a window's wait for weights after `sync_timeout`: the newest usable version serves
    instead.
    """
    bound = stage.policy.max_staleness_versions
    version_wanted = hold.version if isinstance(hold, AwaitsWeights) else -1
    at_most = version_wanted - 1 if stage.synchronizer.sync_style == "fixed" else None
    newest = state.weights.newest(state.spine, at_most=at_most)
    missing = f"version {version_wanted}" if version_wanted >= 0 else "a newer version"
    reason = f"{missing} did not come within sync_timeout ({stage.synchronizer.sync_timeout:g} s)"
    version = newest.version if newest is not None else -1
    if not _Next(state, stage, _Announced(state), feeds_step(view, 0), None, 0).can_use(version):
        reason += f"; the weights available are too old for training (max_staleness {bound}), so the wait continues"
        version = -1
    return WeightsOverdue(
        stage=state.spine.stage,
        window=hold.window,
        wanted=version_wanted,
        version=version,
        waited_s=waited_s,
        reason=reason,
    )


class _Announced:
    """Weight versions that explorers can load now, looked up once for all groups leased together."""

    def __init__(self, state: RunState) -> None:
        """Looks up announcements in `state`."""
        self._state = state
        self._loadable: dict[int, bool] = {}

    @cached_property
    def newest(self) -> int:
        """Newest version that explorers can load; -1 without any."""
        newest = self._state.weights.newest(self._state.spine)
        return newest.version if newest is not None else -1

    def has(self, version: int) -> bool:
        """True if explorers can load the version."""
        if version not in self._loadable:
            self._loadable[version] = self._state.weights.of_version(version, self._state.spine) is not None
        return self._loadable[version]


class _Next:
    """The decision about the group feeding stage step `step`, after the group that began `last`."""

    def __init__(
        self,
        state: RunState,
        stage: StageSpec,
        announced: _Announced,
        step: int,
        last: GroupWindow | None,
        outstanding: int,
    ) -> None:
        """Decides for `stage`; `outstanding` is the number of unfinished groups, to be finished before a new window."""
        self._state = state
        self._stage = stage
        self._step = step
        self._announced = announced
        self._last = last
        self._outstanding = outstanding
        spine = state.spine
        # A fork announces no weights older than the ones it began with.
        self._least = max(spine.first_version, spine.forked.at_step if spine.forked is not None else 0)

    def begin(self) -> Begin | Ask | WindowHold:
        """Returns the beginning of the group; or the request or hold before it."""
        if not has_windows(self._stage.synchronizer):
            announced = self._announced.newest >= self._least
            return Begin(self._least) if announced else AwaitsWeights(version=self._least)
        last = self._last
        number = self._window()
        if last is not None and number == last.number and self.can_use(last.version):
            return Begin(last.version, number, last.place + 1)
        # A new window begins on other weights, loaded by explorers when nothing runs: the last window is finished
        # first.
        if last is not None and self._outstanding:
            return SyncPoint(number, self._outstanding)
        chosen = self._version(number)
        if not isinstance(chosen, int):
            return chosen
        position = last.place + 1 if last is not None and number == last.number else 0
        return Begin(chosen, number, position)

    def can_use(self, version: int) -> bool:
        """True if explorers can load the version, and the group's experiences will be fresh enough at their step."""
        spine = self._state.spine
        policy = self._stage.policy
        staleness = self._step - 1 - (version - spine.first_version)
        fits = not policy.bounded or staleness <= policy.max_staleness_versions
        return fits and self._announced.has(version)

    def _window(self) -> int:
        """Returns the number of the group's window: the last one again, or a new one, never an earlier one."""
        last = self._last
        sync = self._stage.synchronizer
        if sync.sync_style == "fixed":
            return max(window_of(sync, self._step), last.number if last is not None else 0)
        if last is None:
            return 1 if self._state.spine.shared_steps else 0
        full = last.place + 1 >= window_steps(sync, last.number) * self._stage.batch_size
        # A window ends early if its weights are too old for the next group.
        return last.number + 1 if full or not self.can_use(last.version) else last.number

    def _version(self, number: int) -> int | Ask | WindowHold:
        """Returns the version of a window beginning now; or the request or hold before it."""
        state = self._state
        style = self._stage.synchronizer.sync_style
        # A time-out decided earlier stands: the window may have begun on its version, and history is not made anew.
        late = state.spine.overdue.get((state.spine.stage, number), -1)
        if late >= 0 and self.can_use(late):
            return late
        if style == "fixed":
            required = max(self._least, state.spine.first_version + step_of_window(self._stage.synchronizer, number))
            return required if self._announced.has(required) else self._hold_for_version(required, number)
        if style == "explorer_driven" and self._last is not None:
            return self._version_from_answer(number)
        newest = self._announced.newest
        if newest >= self._least and self.can_use(newest):
            return newest
        return self._hold_for_version(self._oldest_usable(), number)

    def _version_from_answer(self, number: int) -> int | Ask | WindowHold:
        """Returns the version in the trainer's answer; or a new request if the answer is too old, or the hold before an
        answer.
        """
        spine = self._state.spine
        request = self._state.spine.request
        answer = self._state.weights.answer
        if request is None or (request.stage, request.window) != (spine.stage, number):
            return Ask(number)
        if answer is None or not self._state.weights.answered(request):
            timeout_s, too_old = self._timeout(number)
            return AwaitsAnswer(window=number, timeout_s=timeout_s, too_old=too_old)
        if self.can_use(answer.version):
            return answer.version
        if spine.version > answer.version:
            return Ask(number, request.number + 1)
        return self._hold_for_version(max(self._oldest_usable(), answer.version + 1), number)

    def _hold_for_version(self, version: int, number: int) -> AwaitsWeights:
        """Returns the hold while the version is not announced."""
        if self._last is None:
            return AwaitsWeights(version=version)
        timeout_s, too_old = self._timeout(number)
        return AwaitsWeights(window=number, timeout_s=timeout_s, too_old=too_old, version=version)

    def _timeout(self, number: int) -> tuple[float | None, bool]:
        """Returns the time-out before the window in seconds (None without one), and whether the time-out has passed
        without usable weights.
        """
        spine = self._state.spine
        assert spine.spec is not None
        overdue = spine.overdue.get((spine.stage, number))
        # A deterministic run waits for ever: its training must not depend on how long something took.
        counts = overdue is None and not spine.spec.deterministic
        return self._stage.synchronizer.sync_timeout if counts else None, overdue == -1

    def _oldest_usable(self) -> int:
        """Returns the oldest version on which the group's experiences would still be fresh enough."""
        spine = self._state.spine
        policy = self._stage.policy
        return max(self._least, spine.first_version + self._step - 1 - policy.max_staleness_versions)

"""The table of selectors. Third parties add one through the entry-point group `rftd.selectors`."""

from __future__ import annotations

from typing import Final

from rftd.ops.errors import ConfigError
from rftd.ops.plugins import Plugins
from rftd.streams.spec.spec import TasksetSpec
from rftd.streams.spec.stage_tasks import SELECTORS as BY_PLACE
from rftd.workers.control.selectors.selector import TaskSelector

_PACKAGE: Final = "rftd.workers.control.selectors"
"""Package of the modules named in the table."""

SELECTORS: Final = Plugins[TaskSelector](
    "data selector",
    group="rftd.selectors",
    table={
        "offline_easy2hard": f"{_PACKAGE}.easy_to_hard:EasyToHard",
        "difficulty_based": f"{_PACKAGE}.difficulty:DifficultyBased",
    },
)
"""Registered selectors that draw rows. `sequential`, `shuffle` and `random` compute the row from the position, without
a class.
"""


def draws(selector: str) -> bool:
    """True if the selector draws rows, so that `tasks.drawn` has to record the rows before tasks are leased.

    False for `sequential`, `shuffle` and `random`, whose row follows from the position.
    """
    return selector not in BY_PLACE


def check_selector(name: str) -> None:
    """Raises ConfigError, suggesting the nearest name, if no selector has this name. Imports no selector."""
    if not draws(name):
        return
    try:
        SELECTORS.check(name)
    except ConfigError as error:
        error.what = error.what.replace("known: ", f"known: {', '.join(BY_PLACE)}, ")
        raise


def follows_rewards(name: str) -> bool:
    """True if the selector uses rewards of earlier rollouts for its draws. Raises ConfigError like `Plugins.load`."""
    return draws(name) and bool(SELECTORS.load(name).follows_rewards)


def make_selector(spec: TasksetSpec) -> TaskSelector:
    """Returns the selector named by a taskset. Raises ConfigError for an unknown name, bad arguments or bad columns."""
    selector = SELECTORS.open(spec.selector, spec.selector_args)
    selector.check_keys(spec.feature_keys)
    return selector

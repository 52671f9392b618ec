"""`EasyToHard`: rows in the descending order of their columns, epoch after epoch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from rftd.ops.errors import ConfigError
from rftd.workers.control.selectors.selector import DrawView

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class EasyToHard:
    """Trinity-RFT's `offline_easy2hard`: easier rows have a larger first column; the next column decides between
    equals.
    """

    follows_rewards: ClassVar[bool] = False
    """False, because the order depends on the columns alone."""
    once_an_epoch: ClassVar[bool] = True
    """True, because every row is drawn once in an epoch."""

    def __init__(self) -> None:
        self._order = lru_cache(maxsize=1)(_order_of)
        """Cached function returning the rows in drawing order; only the last result is kept."""

    @staticmethod
    def check_keys(keys: Sequence[str]) -> None:
        """Raises ConfigError if no column is named."""
        if not keys:
            raise ConfigError(
                "offline_easy2hard needs columns, but selector_args names none",
                field="data_selector.feature_keys",
                fix="name the columns of numbers that are larger for easier rows",
            )

    def draw(self, view: DrawView) -> Sequence[int]:
        """Returns the next rows in the order of the columns, from the beginning again after the last."""
        columns = view.columns
        order = self._order(columns.tobytes(), *columns.shape)
        positions = range(view.first, view.first + view.size)
        return [int(order[position % view.rows]) for position in positions]


def _order_of(columns: bytes, rows: int, keys: int) -> NDArray[np.int64]:
    """Returns the rows from the largest columns to the smallest, the first column first."""
    import numpy as np

    table = np.frombuffer(columns).reshape(rows, keys)
    # The last key of lexsort counts most; of rows with equal columns the later one comes first, like upstream.
    order: NDArray[np.int64] = np.lexsort((np.arange(rows), *reversed(table.T)))[::-1]
    return order

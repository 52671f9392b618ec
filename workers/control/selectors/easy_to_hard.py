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
    """Trinity-RFT's `offline_easy2hard`: the larger its first column, the easier a row; of equals the next decides."""

    follows_rewards: ClassVar[bool] = False
    once_an_epoch: ClassVar[bool] = True

    def __init__(self) -> None:
        self._order = lru_cache(maxsize=1)(_order_of)

    @staticmethod
    def check_keys(keys: Sequence[str]) -> None:
        """Raises ConfigError without a column."""
        if not keys:
            raise ConfigError(
                "offline_easy2hard goes by columns, and none is named",
                field="data_selector.feature_keys",
                fix="name the columns of numbers that are larger for easier rows",
            )

    def draw(self, view: DrawView) -> Sequence[int]:
        """The next rows in that order, from the beginning again once all of them were drawn."""
        columns = view.columns
        order = self._order(columns.tobytes(), *columns.shape)
        places = range(view.first, view.first + view.size)
        return [int(order[place % view.rows]) for place in places]


def _order_of(columns: bytes, rows: int, keys: int) -> NDArray[np.int64]:
    import numpy as np

    table = np.frombuffer(columns).reshape(rows, keys)
    # The last key of lexsort counts most; of rows that are equal in all the later one comes first, as upstream has it.
    order: NDArray[np.int64] = np.lexsort((np.arange(rows), *reversed(table.T)))[::-1]
    return order

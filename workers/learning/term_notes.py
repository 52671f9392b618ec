"""`TermNotes`: the terms of the objective at each trained token of a batch, noted while the batch is trained.

Each token is noted once, by the weights before the optimizer step training the token first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor


class TermNotes:
    """Columns of numbers for the response tokens of each sample of a batch; NaN for tokens without a number."""

    def __init__(self, lengths: Sequence[int]) -> None:
        """Begins without columns; `lengths` are the numbers of response tokens of the batch's samples."""
        self._lengths = lengths
        self.columns: list[dict[str, NDArray[np.float32]]] = [{} for _ in lengths]
        """Columns of each sample by name  # [R] each; empty for a sample without a trained token."""

    def note(
        self,
        members: NDArray[np.int64],
        sequence: NDArray[np.int64],
        places: NDArray[np.int64],
        columns: Mapping[str, Tensor],
    ) -> None:
        """Notes the columns of a micro-batch's N tokens; samples noted earlier are left unchanged.

        `members` are the numbers of the S samples, `sequence` is each token's sample among them, `places` are the
        tokens' indices in the responses  # [S], [N], [N]
        """
        arrays = {name: column.detach().float().cpu().numpy() for name, column in columns.items()}
        for number, member in enumerate(members.tolist()):
            chosen = sequence == number
            # A later epoch trains the sample again, by weights moved by this batch.
            if self.columns[member] or not chosen.any():
                continue
            for name, array in arrays.items():
                column = np.full(self._lengths[member], np.nan, np.float32)
                column[places[chosen]] = array[chosen]
                self.columns[member][name] = column

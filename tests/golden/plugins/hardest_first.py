# hardest_first.py
"""A selector that prefers the rows whose last reward was the lowest."""

import numpy as np


class HardestFirst:
    """Rows that were never tried first, then those with the lowest reward."""

    follows_rewards = True
    once_an_epoch = False

    @staticmethod
    def check_keys(keys):
        """Any columns will do: it looks at none."""

    def draw(self, view):
        newest = np.full(view.rows, -1.0)
        newest[view.rewards.rows] = view.rewards.values
        chance = np.random.default_rng(view.seed + view.first)
        order = np.lexsort((chance.random(view.rows), newest))
        return [int(row) for row in order[: view.size]]

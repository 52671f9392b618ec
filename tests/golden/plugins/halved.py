# halved.py
"""An advantage of half the distance to the mean."""

from rftd.workers.api import OneGroup


class Halved(OneGroup):
    """Half of the distance to the mean."""

    def of_group(self, group):
        return (group.rewards - group.rewards.mean()) / 2

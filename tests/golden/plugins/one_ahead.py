# one_ahead.py
"""A policy that keeps one batch ahead, and a priority for what was hard."""

from rftd.workers.api import Paced


class OneAhead(Paced):
    """Leases as many experiences as the trainer has asked for, and some batches more."""

    def __init__(self, spec):
        super().__init__(spec)
        self.batches = int(spec.args.get("batches", 1))

    def most_supply(self, view):
        return (view.steps_done + 1 + self.batches) * view.batch_size


def hard_first(decay=1.0):
    """The lower the reward, the earlier, and less so after each use."""
    return lambda entry: entry.priority - entry.member.reward - decay * entry.uses

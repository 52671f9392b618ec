"""The contracts of engines as checks, for engines of ours and of third parties.

rollout/  the checks of rollout engines
trainer   the checks of trainer engines
"""

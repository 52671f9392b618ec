"""The contracts of engines as checks, for built-in and third-party engines.

rollout/  the checks of rollout engines
trainer   the checks of trainer engines
"""

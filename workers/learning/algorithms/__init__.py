"""Algorithms as data: the names of advantage, losses and corrections that each takes by default, and what it needs.

In reading order:

definition   `AlgorithmDefinition`: the parts of an algorithm, its needs, its source
catalogue/   every algorithm of ours, in three chapters
registry     the table of them
advantages/  from the rewards of one closed group to advantages: the planner and the trainer both ask them

Losses, corrections and token advantages lie with the trainer, in `training/`; definitions name them.
"""

"""Algorithms as data: the default advantage, losses and corrections of each, and its needs.

In reading order:

definition   `AlgorithmDefinition`: the parts of an algorithm, its needs, its source
catalogue/   every built-in algorithm, in three chapters
registry     the table of algorithms
advantages/  from the rewards of a closed group to advantages, for planner and trainer

Losses, corrections and token advantages are in folders next to this one; definitions refer to them by name.
"""

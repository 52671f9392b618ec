"""The experience pipeline: operators on the experiences of finished groups, before their groups close.

operator    an experience as seen by operators, and the protocol of an operator
operators   the built-in operators, by the guide's names
registry    every operator by name
pipeline    the operators of a stage in order, and the verdicts on a group
"""

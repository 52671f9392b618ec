"""The experiment with every default filled in, in the structure of the configuration guide. In reading order:

experiment.py  `effective_config`, read this first; and sections taken whole, such as synchronizer
learning.py    sections algorithm, trainer and policy, and the replay buffer
rollouts.py    section explorer, with the models
arguments.py   arguments of parts and engines, completed by their defaults
origins.py     the origin of each value
differences.py the fields that differ between experiments
"""

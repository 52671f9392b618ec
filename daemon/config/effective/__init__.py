"""The experiment as it will run, in the structure of the configuration guide. In reading order:

experiment.py  `effective_config`: read this first
learning.py    sections algorithm, trainer, synchronizer and policy, and the replay buffer
rollouts.py    section explorer, with the models
arguments.py   arguments with the defaults of what takes them
origins.py     where each value comes from
"""

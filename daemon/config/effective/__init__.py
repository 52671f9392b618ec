"""The experiment as it will run, in the structure of the configuration guide. In reading order:

experiment.py  `effective_config`: read this first
learning.py    sections algorithm and trainer
data.py        section buffer
rollouts.py    section explorer, with the models
pacing.py      sections synchronizer and policy, and the replay buffer
arguments.py   arguments with the defaults of what takes them
origins.py     where each value comes from
"""

"""Trackers: followers of an experiment's log that show its figures elsewhere, each in a process of its own.

In reading order:

point         what a tracker shows: figures of a step, and remarks
points        from the events of the spine to points: a pure fold
tracker       `Tracker`, the contract of every kind
cursor        how far a tracker has come, in a file that survives kills
samples       the rows of tables, from the log
following     the follower: reads the spine, writes points, moves the cursor
process       the process of one tracker
reach         the hosts that a stranger's tracker may send its keys to
registry      the kinds of trackers, and what each of them needs
sample_text   tables as one text
kept_file     a file of which only what the cursor counts is kept
jsonl         one line of JSON for each point
console       one line of text for each point
event_file    the records of TensorBoard's event files
tensorboard   TensorBoard's event files
remarks       remarks as one text
wandb         runs of Weights & Biases
mlflow        runs of an MLflow server
swanlab       runs of SwanLab
swanlab_run   the process of one of them
trackio       runs in trackio's database

A tracker decides nothing and appends nothing: training never waits for it.
"""

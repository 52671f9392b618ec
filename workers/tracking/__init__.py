"""Trackers: followers of an experiment's log that show its figures elsewhere, each in a separate process.

In reading order:

point         the data of trackers: figures of a step, and remarks
points        from the events of the spine to points: a pure fold
tracker       `Tracker`, the contract of every kind
cursor        a tracker's progress, in a file that survives kills
samples       the rows of tables, from the log
following     the follower: reads the spine, writes points, moves the cursor
process       the process of one tracker, and the hosts to which a third party's may send its keys
addresses     addresses outside the schemes of a tracker's library
registry      the kinds of trackers, and the requirements of each
sample_text   tables as one text
kept_file     a file truncated to the size counted by the cursor
jsonl         one line of JSON for each point
console       one line of text for each point
tensorboard   TensorBoard's event files and their records
remarks       remarks as one text
wandb         runs of Weights & Biases
mlflow        runs of an MLflow server
swanlab       runs of SwanLab
swanlab_run   the process of one SwanLab run
trackio       runs in trackio's database

A tracker makes no decision and appends no record: training never waits for a tracker.
"""

"""Datasets of tasks, and of rows to train on: jsonl files, in file order and line order.

In reading order:

files      which files of a folder a taskset means
taskset    `Taskset`: random access to checked rows, and their digest
order      which row comes at which place of the experiment: a pure function
task       `Task`: one row as a workflow sees it
train_row  one row as the trainer sees it: tokens and loss mask
"""

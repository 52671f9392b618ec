"""Datasets of tasks, and of rows to train on: jsonl files, in file order and line order.

In reading order:

files         which files of a folder a taskset means
taskset       `Taskset`: random access to checked rows, and their digest
order         which row comes at which place of the experiment: a pure function
record        `Record`: one row with typed access to its keys
task          `Task`: one row as a workflow sees it
train_row     one sequence as the trainer sees it: tokens and loss mask
conversation  messages as tokens, and which of them the assistant says
sft_row       a prompt and its answer, or a whole conversation
dpo_rows      two answers to one prompt, the preferred one first
cpt_row       a text of which every token is learned
train_rows    which of these a dataset's rows are
"""

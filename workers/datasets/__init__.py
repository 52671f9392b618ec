"""Datasets of tasks and of rows to train on, and how they become tokens: read by explorers and trainers.

In reading order:

files           which files of a folder a taskset means
row_file        one open file of rows, whatever its format
text_rows       rows of JSON Lines, JSON and CSV
table_rows      rows of Parquet and Arrow; imports pyarrow when one is opened
table_copies    Parquet and Arrow as memory-mapped Arrow below the experiment's folder
taskset         `Taskset`: random access to checked rows of files, and their digest
record          `Record`: one row with typed access to its keys
task            `Task`: one row as a workflow sees it
added           a task that was added while the experiment runs, as a taskset of one row
recorded        a rollout drawn earlier: its tokens, log-probabilities and reward
train_row       one sequence as the trainer sees it: tokens and loss mask
conversation    messages as tokens, and which of them the assistant says
train_rows      prompts with answers, pairs, labelled answers, texts: which of these a dataset's rows are
message         one message of a conversation, and how rows spell it
tokenizer       `Tokenizer`: text to ids and back, the chat template, end-of-sequence ids
byte_tokenizer  one id per byte, for the fake engine and tests: imports nothing
stage_tokenizer which tokenizer a stage has
template_bound  the steps that a chat template may do
hf_tokenizer    the tokenizer of a local model folder; imports transformers when it is opened
"""

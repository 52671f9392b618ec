"""Datasets of tasks and of training rows, and their conversion to tokens: read by explorers and trainers.

In reading order:

files           the files of a taskset within a folder
row_file        one open file of rows, in any format
text_rows       rows of JSON Lines, JSON and CSV
table_rows      rows of Parquet and Arrow; imports pyarrow at the first opening
table_copies    Parquet and Arrow as memory-mapped Arrow below the experiment's folder
taskset         `Taskset`: random access to checked rows of files, and their digest
record          `Record`: one row with typed access to its keys
task            `Task`: one row, as the input of a workflow
added           a task added during the run, as a taskset of one row
recorded        a rollout sampled earlier: its tokens, log-probabilities and reward
train_row       one sequence for the trainer: tokens and loss mask
conversation    messages as tokens, and the tokens spoken by the assistant
train_rows      prompts with answers, pairs, labelled answers, texts: the sequences of a dataset's rows
message         one message of a conversation, and the spellings of a list of messages in rows
tokenizer       `Tokenizer`: text to ids and back, the chat template, end-of-sequence ids
byte_tokenizer  one id per byte, for the fake engine and tests: imports nothing
stage_tokenizer the tokenizer of a stage, the same for explorers and the trainer
template_bound  the limit on the steps of a chat template
hf_tokenizer    the tokenizer of a local model folder; imports transformers at the first opening
"""

"""Rollouts as text, for people. In reading order:

decoding_program  a process for opening tokenizers and decoding ids, under bounds of memory
texts             decoding for the daemon: the process is killed when late, and started again;
                  rows of tasksets, for the messages and the truth of a task
passages          a rollout's ids in turns and parts, by writer
step_advantages   the advantage of a rollout in its step, computed from the log
word_files        words in the answers of experiments, in a cache of SQLite files
word_tables       the same in Postgres, beside the tables
word_index        either cache, filled by searches
trials            first rows and tried rollouts of files not yet submitted, in processes
transcript        an experience as text, with notes about missing parts
"""

"""veRL's configuration here: one table of its keys, for `trainer.trainer_config`.

key.py         one row: a key, its type and default, where it goes, the note
guide_keys.py  the rows of the alignment guide
other_keys.py  keys that veRL has beside them
table.py       rows by name, and the name that was meant
"""

"""A shell script, read and never run: `read_script` follows its branches, and keeps what it cannot decide apart.

reading.py     `read_script`: follows the statements of a script; read this first
script.py      what comes out of it, its places, and what somebody may say of a script beside
tree.py        a text to statements: commands, blocks with their branches, functions
skipping.py    where a quote or an expansion ends
expansion.py   the words of a command, with variables expanded
piece.py       a word that is put together of its pieces
arithmetic.py  `$((...))` in them
conditions.py  the outcome of `[ ... ]` and `case`, where it can be told
variables.py   what variables hold, in one branch and after several
word.py        one word, and the texts that it may have
"""

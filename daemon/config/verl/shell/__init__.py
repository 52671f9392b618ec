"""A shell script, read and never run: `read_script` follows the branches, and keeps undecidable alternatives apart.

reading.py     `read_script`: follows the statements of a script; read this first
script.py      the output of reading, positions, and the user's choices for a script
tree.py        a text to statements: commands, blocks with their branches, functions
skipping.py    the end of a quote or an expansion
expansion.py   the words of a command, with variables expanded
piece.py       a word assembled from pieces
arithmetic.py  `$((...))` in words
conditions.py  the outcome of `[ ... ]` and `case`, if decidable
variables.py   the values of variables, in one branch and after several
word.py        one word, and the possible texts of an uncertain word
"""

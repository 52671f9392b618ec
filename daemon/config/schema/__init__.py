"""The schema of the experiment file, one file and pydantic model per large section, strict; nothing here does anything.

Read `experiment.py` first (the file as a whole, and its small sections), then `section.py` (what all sections share:
how a field is marked that rftd reads and does not act on yet), then the section that you look for. The text below a
field says what it does, and `Upstream` what it is in the guide where that differs; page and JSON Schema tell both.
"""

"""The schema of the experiment file: a strict pydantic model for each section, one file per large section; no
behaviour.

In reading order:

    section.py      shared by all sections, with the marks of a field: harmless, refused, checked, acts_later
    experiment.py   the whole file, and its small sections
    algorithm.py, buffer.py, explorer.py, model.py, policy.py, trainer.py   a large section each
    naming.py       marks of fields that name something outside: a path, a URL, a variable
    name_grammar.py the grammar of names and labels typed by people

The text below a field describes the effect, and
`Upstream` a different meaning in the guide; page and JSON Schema print both.
"""

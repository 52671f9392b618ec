"""The schema of the experiment file: a strict pydantic model for each section, one file per large section; no
behaviour.

Read `experiment.py` first (the whole file and small sections), then `section.py` (shared by all sections, with the
marks of fields without effect), then the section of interest. The text below a field describes the effect, and
`Upstream` a different meaning in the guide; page and JSON Schema print both.
"""

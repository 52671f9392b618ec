"""The experiment file: from a user's YAML to the `ExperimentSpec` stored in the log. Pure functions; all errors at
once.

In reading order, the order of the work:

    loading.py        `load_file`, `load_text`, `check_config`: the public calls; read these first
    field_path.py     names of fields: ('buffer', 'eval_tasksets', 0) and `buffer.eval_tasksets[0]`
    source.py         file, line and column of each field
    issue.py          one error of a file, the notes of a resolver, the error with line and nearest name
    yaml_source.py    text to plain data, within the limits
    plain.py          the limits again, for data from elsewhere than a file
    normalise.py      both spellings to the current one
    sweep_points.py   `-s key=a,b,c` to the runs of a sweep
    interpolation.py  `${oc.env:VAR,default}`, `${oc.decode:...}`, `${model.model_path}`: on the client only
    grammar.py        parsing of interpolated text, and of plain YAML words: `1e-5` is a number, `010` is text
    own_sources.py    on the client: Python files named by rewards, workflows, agents and losses, read into `sources`
    client_side.py    before data leaves the client: absolute paths, and secrets as `{env: NAME}`
    verl/             veRL's keys: the content of `trainer.trainer_config`, and `rftd import-verl`
    schema/           one pydantic model per section of the file
    gaps.py           values still to be filled in, `???`
    validation.py     data against the schema
    resolve/          the schema's models to complete stages
    further_errors.py further errors of a file with malformed fields
    effective/        a specification back to a complete file, and the origin of each value
    yaml_text.py      plain data as YAML, with comments
    json_schema.py    the schema's models as JSON Schema
    form_fields.py    the fields of a form, from that schema and from the arguments of parts

A new field: one line in its section of `rftd.streams.spec.sections`, if the section is declared there
(optimizer, format, synchronizer, limits, slow rollouts). Elsewhere a line
in `schema/SECTION`, a field in `rftd.streams.spec.spec`, set in `resolve/SECTION` and returned by `effective/`. Then
tests/golden/make_configuration_page.py.
"""

"""The experiment file: from a user's YAML to the `ExperimentSpec` that the log keeps. Pure, all errors at once.

In reading order, which is the order of the work:

    loading.py        `load_file`, `load_text`, `check_config`: the public calls; read these first
    field_path.py     how a field is named: ('buffer', 'eval_tasksets', 0) and `buffer.eval_tasksets[0]`
    source.py         where each field stands: file, line, column
    issue.py          one thing that is wrong, the notes that a resolver takes, the error with line and nearest name
    yaml_source.py    text to plain data, within the limits
    plain.py          the limits again, for data that did not come from a file
    normalise.py      both spellings to the current one
    sweep_points.py   `-s key=a,b,c` to the runs of a sweep
    interpolation.py  `${oc.env:VAR,default}`, `${oc.decode:...}`, `${model.model_path}`: on the client only
    grammar.py        how such a text is taken apart; a plain YAML word: `1e-5` is a number, `010` is text
    client_side.py    what leaves the client: absolute paths, and secrets as `{env: NAME}`
    verl/             veRL's keys: what `trainer.trainer_config` takes, and `rftd import-verl`
    schema/           one pydantic model per section of the file
    gaps.py           values that somebody still has to fill in, `???`
    validation.py     data against the schema
    resolve/          the schema's models to stages that are complete
    stand_ins.py      what else is wrong beside fields that are malformed
    effective/        a specification back to a file that says all of it, and where each value comes from
    yaml_text.py      plain data as YAML, with comments
    json_schema.py    the schema's models as JSON Schema
"""

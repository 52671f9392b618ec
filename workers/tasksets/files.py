"""The files of a taskset, by the conventions of a dataset folder, as far as jsonl goes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NoReturn

from rftd.ops.errors import DataError
from rftd.streams.spec import TasksetSpec

SHARD: Final = re.compile(r"\d+")
OTHER_FORMATS: Final = (".parquet", ".arrow", ".json", ".csv", ".jsonl.gz", ".jsonl.zst")


def taskset_files(spec: TasksetSpec) -> tuple[Path, ...]:
    """The files of a taskset, in reading order.

    `path` is a .jsonl file, or a folder with `<subset>/<split>.jsonl`, else `<split>.jsonl`; each may instead be
    numbered parts (`train-00000-of-00002.jsonl`). A folder whose files name no split is one whole `train` split.

    Raises DataError, with what was looked for, if there is none or more than one reading.
    """
    for field, value in (("subset_name", spec.subset), ("split", spec.split)):
        if value is not None and not re.fullmatch(r"[\w.-]+", value):
            raise DataError(
                f"{field} {value!r} of taskset {spec.name!r} is not a plain name",
                where=spec.path,
                fix="name a file or folder; use limit_rows for a part of a split",
            )
    path = Path(spec.path)
    if path.is_file():
        if path.suffix != ".jsonl":
            _refuse(spec, f"{path.name} is not a .jsonl file", path)
        return (path,)
    if not path.is_dir():
        _refuse(spec, f"there is no file or folder {spec.path!r}", path)
    return _in_folder(spec, path)


def _in_folder(spec: TasksetSpec, path: Path) -> tuple[Path, ...]:
    folders = [path / spec.subset, path] if spec.subset else [path]
    for folder in folders:
        exact = folder / f"{spec.split}.jsonl"
        if exact.is_file():
            return (exact,)
        parts = sorted(file for file in folder.glob(f"{spec.split}[-_.]*.jsonl") if file.is_file())
        if parts:
            # Parts of one split differ in their numbers alone: train-0001 and train-v2-0001 are two data sets.
            if len({SHARD.sub("#", file.name) for file in parts}) > 1:
                _refuse(spec, f"split {spec.split!r} could mean any of {_names(parts)}", folder)
            return tuple(parts)
    for folder in folders:
        files = sorted(file for file in folder.glob("*.jsonl") if file.is_file())
        if not files:
            continue
        # Anything else would train on a test split, or test on the training data, without a word.
        if spec.split != "train" or any(re.match(r"(test|val|dev|eval)", file.name) for file in files):
            _refuse(spec, f"no file is named for split {spec.split!r}; there are {_names(files)}", folder)
        return tuple(files)
    _refuse(spec, "there is no .jsonl file", path)


def _names(files: list[Path]) -> str:
    shown = ", ".join(file.name for file in files[:8])
    return shown if len(files) <= 8 else f"{shown} and {len(files) - 8} more"


def _refuse(spec: TasksetSpec, what: str, where: Path) -> NoReturn:
    sought = f"{spec.split}.jsonl" + (f" or {spec.subset}/{spec.split}.jsonl" if spec.subset else "")
    folder = where if where.is_dir() else where.parent
    foreign = folder.is_dir() and any(file.name.endswith(OTHER_FORMATS) for file in folder.rglob("*"))
    if foreign or not where.exists():
        subset = f", {spec.subset!r}" if spec.subset else ""
        file = where.name if where.suffix == ".jsonl" else f"{spec.split}.jsonl"
        fix = (
            "rftd reads local jsonl files; export a dataset of the Hugging Face hub with "
            f"`datasets.load_dataset('<owner>/<name>'{subset})[{spec.split!r}].to_json('{file}')` "
            "and set path to that file or its folder"
        )
    else:
        fix = f"name the file {spec.split}.jsonl, correct split or subset_name, or set path to one .jsonl file"
    looked = f" (looked for {sought})" if where.is_dir() else ""
    raise DataError(f"taskset {spec.name!r}: {what}{looked}", where=str(where), fix=fix)

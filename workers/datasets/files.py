"""The files of a taskset, by the conventions of a dataset folder, as hubs and `datasets` write it."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec
import yaml

from rftd.ops.decoding import UNREADABLE, json_decoder
from rftd.ops.errors import DataError
from rftd.ops.hub_id import DATASET, HubId
from rftd.streams.spec.spec import TasksetSpec

LINES: Final = ".jsonl"
"""Suffix of JSON Lines."""
FORMATS: Final = (LINES, ".parquet", ".arrow", ".csv", ".json")
"""Supported kinds of files."""
SHARD: Final = re.compile(r"\d+")
"""Run of digits in a file's name, replaced by `#` in order to compare the names of a split's files."""
_PART: Final = re.compile(r"(?P<head>.*-)\d{5}-of-(?P<of>\d{5})(?P<tail>\.\w+)")
"""Name of one part of a split, as the hub writes it."""
PATTERN: Final = re.compile(r"[*?[]")
"""A character making a path a pattern."""
_PACKED: Final = (".gz", ".zst", ".bz2", ".xz", ".zip")
"""Suffixes of compressed files, which are refused."""
_NO_ROWS: Final = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")
"""Files written by `datasets` next to the rows, without rows."""
_CARD_SIZE_BYTES: Final = 2**20
"""Maximum bytes read of a folder's README.md."""


def taskset_files(spec: TasksetSpec) -> tuple[Path, ...]:
    """Returns the files of a taskset, in reading order: the files of each path, one path after another.

    A path is a file, a pattern of files (`data/train-*.parquet`), or a folder in the layout of hubs: the files named in
    README.md for `subset_name` and `split`; else `SPLIT.jsonl`, numbered parts (`train-00000-of-00002.parquet`) or a
    folder `SPLIT`, in `<subset>`, in the folder itself or in `data` below them. A folder whose files name no split is
    one whole `train` split. JSON Lines are read before other formats.

    Raises DataError, with the names tried, if a path has none or more than one reading, or if two name one file.
    """
    for field, name in (("subset_name", spec.subset), ("split", spec.split)):
        if name is not None and not re.fullmatch(r"[\w.-]+", name):
            raise DataError(
                f"{field} {name!r} of taskset {spec.name!r} is not a plain name",
                where=spec.path,
                fix="name a file or folder; use limit_rows for a part of a split",
            )
    files: list[Path] = []
    for path in spec.paths:
        named = _files_of_path(msgspec.structs.replace(spec, path=path, more_paths=()))
        if twice := [file for file in named if file in files]:
            _refuse(spec, f"two of its paths name {twice[0]}", twice[0])
        files += named
    return tuple(files)


def _files_of_path(spec: TasksetSpec) -> tuple[Path, ...]:
    """Returns the files of a taskset of one path."""
    path = Path(spec.path)
    if path.is_file():
        if path.suffix not in FORMATS:
            _refuse(spec, f"{path.name} is not a {', '.join(FORMATS[:-1])} or {FORMATS[-1]} file", path)
        return (path,)
    if path.is_dir():
        files = _files_of_folder(spec, path)
        _check_parts(files)
        return files
    if PATTERN.search(spec.path):
        return _files_of_pattern(spec, path)
    _refuse(spec, f"there is no file or folder {spec.path!r}", path)


def _files_of_pattern(spec: TasksetSpec, path: Path) -> tuple[Path, ...]:
    # A link to a folder followed by `..` would lead to the folder above its target.
    """Returns the files that fit a pattern, of one format."""
    if ".." in path.parts:
        _refuse(spec, "a pattern of files must not lead upwards", path)
    files = sorted(Path(name) for name in glob.glob(spec.path, recursive=True))
    files = [file for file in files if file.suffix in FORMATS and file.is_file()]
    if not files:
        _refuse(spec, f"no file of {', '.join(FORMATS)} fits the pattern {spec.path!r}", path)
    _check_one_format(spec, files, path.parent)
    return tuple(files)


def _files_of_folder(spec: TasksetSpec, path: Path) -> tuple[Path, ...]:
    """Returns the files of a folder for subset and split, by its card, by names, or as one whole split."""
    if listed := _files_of_card(spec, path):
        return listed
    folders = [folder for base in _candidate_folders(spec, path) for folder in (base, base / "data")]
    for folder in folders:
        if files := _files_of_split(spec, folder):
            return files
    for folder in folders:
        whole = _whole_split(folder)
        if not whole:
            continue
        # Anything else would train on a test split, or test on the training data, without a warning.
        if spec.split != "train" or any(re.match(r"(test|val|dev|eval)", file.name) for file in _rows_in(folder)):
            _refuse(
                spec,
                f"no file is named for split {spec.split!r}; the splits are {_shown_names(_rows_in(folder))}",
                folder,
            )
        _check_one_format(spec, whole, folder)
        return tuple(whole)
    _refuse(spec, "there is no file of rows", path)


def _candidate_folders(spec: TasksetSpec, path: Path) -> list[Path]:
    """Returns the folders to search: the subset's, then the taskset's own."""
    return [path / spec.subset, path] if spec.subset else [path]


def _files_of_split(spec: TasksetSpec, folder: Path) -> tuple[Path, ...]:
    """Returns the files of a folder that are named for the split, of one format."""
    readings = [files for suffix in FORMATS if (files := _split_files(spec, folder, suffix))]
    # JSON Lines go first, whatever files lie beside them.
    if readings and readings[0][0].suffix != LINES and len(readings) > 1:
        either = [files[0] for files in readings]
        _refuse(spec, f"split {spec.split!r} could mean any of {_shown_names(either)}", folder)
    return readings[0] if readings else ()


def _split_files(spec: TasksetSpec, folder: Path, suffix: str) -> tuple[Path, ...]:
    """Returns the file, parts or folder named after the split, with this suffix."""
    exact = folder / f"{spec.split}{suffix}"
    if exact.is_file():
        return (exact,)
    parts = sorted(file for file in folder.glob(f"{spec.split}[-_.]*{suffix}") if file.is_file())
    # Parts of one split differ only in numbers: train-0001 and train-v2-0001 are two data sets.
    if len({SHARD.sub("#", file.name) for file in parts}) > 1:
        _refuse(spec, f"split {spec.split!r} could mean any of {_shown_names(parts)}", folder)
    if parts:
        return tuple(parts)
    return tuple(file for file in _whole_split(folder / spec.split) if file.suffix == suffix)


def _whole_split(folder: Path) -> list[Path]:
    """Returns the files of a folder that is one split: the ones listed by `datasets`, else all, JSON Lines first."""
    state = folder / "state.json"
    if state.is_file() and (saved := _saved_dataset(folder, state)):
        return saved
    files = _rows_in(folder)
    lines = [file for file in files if file.suffix == LINES]
    return lines or files


def _rows_in(folder: Path) -> list[Path]:
    # The library caches its computations in the folder, as cache-....arrow.
    """Returns the files of rows directly in a folder, without caches and descriptions."""
    return sorted(
        file
        for suffix in FORMATS
        for file in folder.glob(f"*{suffix}")
        if file.is_file() and file.name not in _NO_ROWS and not file.name.startswith("cache-")
    )


def _saved_dataset(folder: Path, state: Path) -> list[Path]:
    """Returns the files of a folder written by `Dataset.save_to_disk`, in the listed order."""
    try:
        listed = json_decoder(dict[str, Any]).decode(state.read_bytes())
        names = [str(data_file["filename"]) for data_file in listed["_data_files"]]
    except (*UNREADABLE, OSError, KeyError, TypeError) as error:
        raise DataError(
            f"the folder's list of files cannot be read: {error}", where=str(state), fix="save the dataset again"
        ) from None
    if strange := [name for name in names if Path(name).name != name]:
        raise DataError(
            f"{strange[0]!r} is not the name of a file in this folder", where=str(state), fix="correct the list"
        )
    files = [folder / name for name in names]
    if missing := [file.name for file in files if not file.is_file()]:
        raise DataError(f"{missing[0]} is listed, but missing", where=str(state), fix="copy the whole folder again")
    return files


def _files_of_card(spec: TasksetSpec, path: Path) -> tuple[Path, ...]:
    """Returns the files named in the head of README.md for subset and split; none without such names."""
    config = _config_of(spec, _read_card(path))
    if config is None:
        return ()
    named = config.get("data_files")
    if isinstance(named, list) and all(isinstance(data_file, dict) for data_file in named):
        named = next((data_file.get("path") for data_file in named if data_file.get("split") == spec.split), None)
    elif spec.split != "train":
        return ()
    patterns = [named] if isinstance(named, str) else named if isinstance(named, list) else []
    files: list[Path] = []
    for pattern in patterns:
        # Only files in the folder: a card may come from anybody.
        if not isinstance(pattern, str) or "://" in pattern or pattern.startswith("/") or ".." in Path(pattern).parts:
            raise DataError(
                f"the data_files of README.md name {pattern!r}, which is not in this folder",
                where=str(path / "README.md"),
                fix="set path to the files themselves",
            )
        below = str(config.get("data_dir") or "")
        root = path / below if below and not below.startswith("/") and ".." not in Path(below).parts else path
        matches = sorted(root.glob(pattern))
        files += [file for file in matches if file.suffix in FORMATS and file.is_file()]
    if patterns and not files:
        _refuse(spec, f"README.md names {', '.join(patterns)} for split {spec.split!r}, which does not exist", path)
    if files:
        _check_one_format(spec, files, path)
    return tuple(dict.fromkeys(files))


def _config_of(spec: TasksetSpec, card: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the card's configuration of the subset; None without one. Raises DataError for several."""
    listed = card.get("configs")
    configs = [subset for subset in listed if isinstance(subset, dict)] if isinstance(listed, list) else []
    if spec.subset is not None:
        return next((config for config in configs if config.get("config_name") == spec.subset), None)
    defaults = [config for config in configs if config.get("default") is True or config.get("config_name") == "default"]
    if defaults or len(configs) == 1:
        return (defaults or configs)[0]
    if configs:
        names = ", ".join(str(config.get("config_name")) for config in configs)
        raise DataError(
            f"taskset {spec.name!r}: the dataset has several subsets: {names}",
            where=spec.path,
            field="subset_name",
            fix=f"set subset_name to one of {names}",
        )
    return None


def _read_card(path: Path) -> dict[str, Any]:
    """Returns the head of README.md as a mapping; empty if missing or malformed."""
    try:
        with (path / "README.md").open(encoding="utf-8", errors="replace") as file:
            text = file.read(_CARD_SIZE_BYTES)
    except OSError:
        return {}
    head = re.match(r"---\r?\n(.*?)\r?\n---", text, re.DOTALL)
    try:
        card = yaml.safe_load(head[1]) if head else None
    except (yaml.YAMLError, RecursionError, ValueError):
        return {}
    return card if isinstance(card, dict) else {}


def _check_parts(files: Sequence[Path]) -> None:
    """Raises DataError for a missing part of a split, counted in the names of the other parts."""
    counted = [match for file in files if (match := _PART.fullmatch(str(file)))]
    for head, of, tail in {(match["head"], match["of"], match["tail"]) for match in counted}:
        named = (Path(f"{head}{number:0{len(of)}}-of-{of}{tail}") for number in range(int(of)))
        missing = next((file for file in named if file not in files), None)
        if missing is not None:
            raise DataError(
                f"{missing.name} is missing, although the names of the other parts count it",
                where=str(missing.parent),
                fix="fetch or copy it too; or set path to a pattern of the intended parts",
            )


def _check_one_format(spec: TasksetSpec, files: Sequence[Path], folder: Path) -> None:
    """Raises DataError if the files have several formats."""
    if len({file.suffix for file in files}) > 1:
        _refuse(spec, f"files of several formats could be meant: {_shown_names(files)}", folder)


def _shown_names(files: Iterable[Path]) -> str:
    """Returns the names of files for messages, eight at most."""
    names = [file.name for file in files]
    shown = ", ".join(names[:8])
    return shown if len(names) <= 8 else f"{shown} and {len(names) - 8} more"


def _refuse(spec: TasksetSpec, problem: str, where: Path) -> NoReturn:
    """Raises DataError about a taskset's path, with the remedy that fits the folder."""
    sought = f"{spec.split}.jsonl, .parquet, .arrow, .csv or .json" + (
        f", also in {spec.subset}" if spec.subset else ""
    )
    folder = where if where.is_dir() else where.parent
    packed = [file.name for file in sorted(folder.glob("*")) if file.suffix in _PACKED] if folder.is_dir() else []
    subset = f", {spec.subset!r}" if spec.subset else ""
    id = HubId.parse(spec.path)
    if id is not None and not where.exists():
        fetch = f"{id.fetch_command(DATASET)}, or rftd submit --pull"
        fix = f"fetch the dataset for the daemon's user: {fetch}; or set path to a file or folder"
    elif packed:
        fix = f"unpack {packed[0]}, or set path to an uncompressed file"
    elif not where.exists() and not PATTERN.search(str(where)):
        file = where.name if where.suffix in FORMATS else f"{spec.split}.parquet"
        fix = (
            "rftd reads local files; fetch a dataset of the Hugging Face hub with `hf download --repo-type dataset "
            f"<owner>/<name> --local-dir DIR` and set path to DIR, or write one file with "
            f"`datasets.load_dataset('<owner>/<name>'{subset})[{spec.split!r}]"
            f".{'to_json' if file.endswith('.jsonl') else 'to_parquet'}('{file}')` and set path to it"
        )
    else:
        fix = f"name the file {spec.split}.jsonl or .parquet, correct split or subset_name, or set path to one file"
    looked = f" (looked for {sought})" if where.is_dir() else ""
    raise DataError(f"taskset {spec.name!r}: {problem}{looked}", where=str(where), fix=fix)

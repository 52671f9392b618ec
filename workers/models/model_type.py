"""Checks of a model folder's config.json: whether the folder can hold a model of the requested kind, without loading
it.
"""

from __future__ import annotations

import ast
import difflib
import importlib.util
import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from rftd.ops.decoding import UNREADABLE, json_decoder
from rftd.ops.errors import DataError
from rftd.workers.devices.device_memory import number_in, settings_of, tensor_names
from rftd.workers.models.text_lengths import moving_rotation

_CAUSAL: Final = "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"
_MASKED: Final = "MODEL_FOR_MASKED_LM_MAPPING_NAMES"
_SCORING: Final = "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES"
_TABLES: Final = (_CAUSAL, _MASKED, _SCORING)
_CLASSES: Final = "causal classes"
_CAUSAL_CODE: Final = "AutoModelForCausalLM"
_AUTO_MAP_KEYS_BY_FILE: Final = {
    "config.json": ("AutoConfig", _CAUSAL_CODE),
    "tokenizer_config.json": ("AutoTokenizer",),
}
"""Keys of auto_map used by a worker, by file."""
_POSITIONS: Final = re.compile(r"\b(wpe|embed_positions|position_embeddings)\.weight$")
"""Tensors with one vector per position."""
# Keys of the parts of models that see or hear; the text part is config.json's text_config.
_MULTIMODAL_CONFIG: Final = re.compile(r"^(vision|image|video|audio|speech)\w*_config$")


def check_model_type(folder: Path, *, trust_remote_code: bool = False, field: str | None = None) -> None:
    """Raises DataError, with the model type, if no engine can run the model described by config.json.

    Refused are types without a causal language model in transformers, encoders, and models for more than text.
    """
    config = read_config(folder, field)
    kind = config.get("model_type")
    problem = ""
    fix = "use a causal language model of text"
    table = _table()
    # A folder with custom code may be of any type: transformers does not know it, and need not.
    own_code = trust_remote_code and "auto_map" in config
    senses = sorted(
        key for key, section in config.items() if _MULTIMODAL_CONFIG.match(key) and isinstance(section, dict)
    )
    if not isinstance(kind, str) or not kind:
        raise DataError(
            "config.json names no model_type",
            where=str(folder),
            field=field,
            fix="copy the folder again",
        )
    if senses:
        problem = f"they also take images or audio ({senses[0]}), and only text is trained"
        fix = "use the folder of a language model alone"
    elif own_code or not table:
        return
    elif kind not in table[_CAUSAL]:
        near = difflib.get_close_matches(kind, table[_CAUSAL], 1)
        problem = "transformers has no causal language model of this type"
        if "auto_map" in config:
            fix = "write model.trust_remote_code: true if its own code is to be run, or use another model"
        elif near:
            fix = f"did you mean {near[0]!r}? {fix}"
    elif kind in table[_MASKED] and not config.get("is_decoder") and not config.get("is_encoder_decoder"):
        problem = "they are encoders, whose tokens attend to later ones (config.json has no is_decoder: true)"
    elif own_class := _custom_class(config, table[_CLASSES]):
        problem = f"this one is a {own_class}, which is code of its folder"
        fix = "write model.trust_remote_code: true if its own code is to be run, or use another model"
    if problem:
        raise DataError(f"{kind} models cannot be run: {problem}", where=str(folder), field=field, fix=fix)


def _custom_class(config: Mapping[str, Any], classes: Collection[str]) -> str:
    """Returns the model class in the folder's code, if transformers has none of that name; else empty."""
    named = config.get("auto_map")
    reference = named.get(_CAUSAL_CODE) if isinstance(named, dict) else None
    if not isinstance(reference, str):
        return ""
    own_class = reference.rpartition(".")[2]
    # transformers has adopted some under a name with other capitals: MPTForCausalLM is MptForCausalLM.
    of_transformers = {name.lower() for name in classes}
    names = (own_class, *(str(name) for name in config.get("architectures") or ()))
    return "" if any(name.lower() in of_transformers for name in names) else own_class


def check_own_code(folder: Path, *, field: str | None = None) -> None:
    """Raises DataError if config.json or tokenizer_config.json names a code file missing in the folder.

    Code of another repository of the hub is not checked here, but by the worker running the code.
    """
    for name, kinds in _AUTO_MAP_KEYS_BY_FILE.items():
        try:
            named = json_decoder(dict[str, Any]).decode((folder / name).read_bytes()).get("auto_map")
        except (OSError, *UNREADABLE):
            continue
        references = [named.get(kind) for kind in kinds] if isinstance(named, dict) else [named]
        for reference in _texts(references):
            module = reference.partition(".")[0]
            if "--" not in reference and not (folder / f"{module}.py").is_file():
                raise DataError(
                    f"{name} names missing code: {module}.py, for {reference!r} (auto_map)",
                    where=str(folder),
                    field=field,
                    fix="download or copy the folder again, every file of it",
                )


def _texts(node: object) -> Iterator[str]:
    """Yields the texts of a list, and of the lists in it."""
    if isinstance(node, str):
        yield node
    elif isinstance(node, list):
        for child in node:
            yield from _texts(child)


def check_scoring_model(folder: Path, *, field: str) -> None:
    """Raises DataError if `folder` cannot be opened as a sequence classification model with one output.

    Weight files are looked for, not read: only loading shows whether they contain a trained score.
    """
    problem = ""
    fix = "give the folder of a trained reward model in Hugging Face's layout"
    if not folder.is_absolute():
        problem = f"{str(folder)!r} is not an absolute path, and its reader has another working directory"
        fix = "write the absolute path, or submit the file with `rftd submit`"
    elif not (folder / "config.json").is_file():
        problem = f"no reward model in {str(folder)!r}" if folder.is_dir() else f"no such folder: {str(folder)!r}"
        fix = "give the path of a local Hugging Face folder (config.json, tokenizer, model.safetensors)"
    else:
        config = read_config(folder, field)
        kind = config.get("model_type")
        table = _table()
        made_for = [str(architecture) for architecture in config.get("architectures") or ()]
        # transformers leaves out the number of labels if it is 2.
        outputs = config.get("num_labels") or len(config.get("id2label") or (0, 1))
        # Only safetensors: other formats of weights can run code on reading.
        if not any(folder.glob("*.safetensors")):
            problem = f"{str(folder)!r} has no weights in safetensors files"
        elif table and kind not in table[_SCORING]:
            problem = f"transformers has no sequence classification model of the type {kind!r} in {str(folder)!r}"
        elif made_for and not any(
            "Classification" in architecture or "Reward" in architecture for architecture in made_for
        ):
            problem = f"{str(folder)!r} holds a {made_for[0]}, which has no trained score"
        elif outputs != 1:
            problem = f"the model in {str(folder)!r} gives {outputs} outputs, not one score"
    if problem:
        raise DataError(problem, field=field, fix=fix)


def check_rotation(folder: Path, max_tokens: int, *, field: str) -> None:
    """Raises DataError if texts of up to `max_tokens` rotate embeddings by angles that depend on their length.

    Settings left to transformers' defaults are checked when the model is opened.
    """
    config = read_config(folder, field)
    text = config["text_config"] if isinstance(config.get("text_config"), dict) else config
    parameters = text.get("rope_parameters") or text.get("rope_scaling")
    rotation = dict(parameters) if isinstance(parameters, dict) else {}
    if "type" in rotation:  # its name before it was called rope_type
        rotation.setdefault("rope_type", rotation["type"])
    trained_length = "original_max_position_embeddings"
    if isinstance(text.get(trained_length), int):  # Phi-3 has it beside the rotation
        rotation.setdefault(trained_length, text[trained_length])
    stated = SimpleNamespace(
        rope_parameters=rotation, max_position_embeddings=text.get("max_position_embeddings", max_tokens)
    )
    # moving_rotation takes a transformers configuration: this stand-in has the two fields it reads.
    stated.get_text_config = lambda: stated
    if moving := moving_rotation(stated, max_tokens):
        reason, limit = moving
        raise DataError(
            f"{config.get('model_type')} models of this kind cannot be exact: {reason}",
            where=str(folder),
            field=field,
            fix=f"set model.max_model_len to at most {limit}, or use another model",
        )


def check_positions(folder: Path, max_tokens: int, *, field: str) -> None:
    """Raises DataError if a model with learned position vectors has no vector for the last of `max_tokens`."""
    if not any(_POSITIONS.search(name) for name in tensor_names(folder)):
        return  # rotary embeddings turn by any angle
    positions = number_in(settings_of(folder), "n_positions", "max_position_embeddings")
    if 0 < positions < max_tokens:
        raise DataError(
            f"the model has learnt {positions} positions, and texts may have {max_tokens} tokens",
            where=str(folder),
            field=field,
            fix=f"set model.max_model_len to at most {positions}",
        )


def causal_architectures() -> frozenset[str]:
    """Returns the causal language models of the installed transformers, by class; empty for unreadable tables."""
    return _table().get(_CLASSES, frozenset())


def model_type(folder: Path) -> str:
    """Returns the model type of a folder, or `unknown` for an unreadable config.json; for messages only."""
    try:
        return str(read_config(folder).get("model_type", "unknown"))
    except DataError:
        return "unknown"


def read_config(folder: Path, field: str | None = None) -> dict[str, Any]:
    """Returns a folder's config.json as a mapping. Raises DataError if the file cannot be read."""
    path = folder / "config.json"
    try:
        config: dict[str, Any] = json_decoder(dict[str, Any]).decode(path.read_bytes())
    except (OSError, *UNREADABLE) as error:
        raise DataError(
            f"config.json cannot be read: {type(error).__name__}: {error}",
            where=str(folder),
            field=field,
            fix="copy the folder again",
        ) from error
    return config


@cache
def _table() -> dict[str, frozenset[str]]:
    """Returns the model types by kind of model, and the causal classes, from the source text of transformers.

    Empty if transformers is not installed, or spells its tables differently.

    The source text, because importing takes seconds, and torch, which the daemon does without.
    """
    module = importlib.util.find_spec("transformers")
    folders = (module.submodule_search_locations if module else None) or []
    try:
        # Parsed, not imported: the tables are plain literals in that file.
        tree = ast.parse(Path(folders[0], "models", "auto", "modeling_auto.py").read_text())
    except (IndexError, OSError, SyntaxError, UnicodeDecodeError):
        return {}
    tables = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id in _TABLES
    }
    table = {name: frozenset(_first_words(literal)) for name, literal in tables.items()}
    # A release with other tables has none here: then nothing is refused by type.
    if not all(table.get(name) for name in _TABLES):
        return {}
    return {**table, _CLASSES: _words(tables[_CAUSAL]) - table[_CAUSAL]}


def _words(literal: ast.expr) -> frozenset[str]:
    """Returns every text of a table."""
    constants = (node.value for node in ast.walk(literal) if isinstance(node, ast.Constant))
    return frozenset(constant for constant in constants if isinstance(constant, str))


def _first_words(literal: ast.expr) -> list[str]:
    """Returns the first text of each pair of a table."""
    pairs = [node for node in ast.walk(literal) if isinstance(node, ast.Tuple) and node.elts]
    firsts = [pair.elts[0] for pair in pairs]
    return [first.value for first in firsts if isinstance(first, ast.Constant) and isinstance(first.value, str)]

"""Files of other projects, opened in the studio and saved without a change, against the command line.

Each experiment file (.yaml) and each launch script of veRL (.sh) below FOLDER, equal ones once: what the saved file
resolves to, or its errors, must be what the command line makes of the file itself. Every variable is set.
Run: python -P tests/bench/opened_files.py FOLDER
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.extend(str(Path(__file__).parents[above]) for above in (0, 1))

import httpx
import msgspec
import yaml
from figures import tell
from imported_scripts import CLUSTER, ENVIRON, RUNS
from synthetic.daemon.daemon_parts import open_daemon

from rftd.daemon.config.issue import ConfigErrors
from rftd.daemon.config.loading import load_text
from rftd.daemon.config.verl.importing import import_file

SECTIONS = {"model", "algorithm", "buffer"}


def is_experiment(text: str) -> bool:
    """True for an experiment file, false for the trainer's own file and for anything else."""
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError:
        return False
    return isinstance(tree, dict) and bool(SECTIONS & tree.keys()) and "actor_rollout_ref" not in tree


def distinct(folder: Path, pattern: str) -> Iterator[tuple[Path, str]]:
    """The files of a pattern with their texts, equal texts once."""
    texts: set[str] = set()
    for path in sorted(path for path in folder.rglob(pattern) if path.is_file()):
        text = path.read_text(errors="replace")
        if text not in texts:
            texts.add(text)
            yield path, text


def outcome(text: str) -> tuple[str, Any]:
    """What the command line makes of a file: the resolved experiment, or its errors."""
    try:
        submission = load_text(text, "exp.yaml", environ=ENVIRON, cwd=Path("/w"), host=CLUSTER)
    except ConfigErrors as errors:
        return "refused", sorted((error.field or "", error.what) for error in errors.errors)
    return "accepted", msgspec.to_builtins(submission.spec)


async def saved(client: httpx.AsyncClient, text: str) -> str:
    """The file as the studio saves it without a change."""
    answer = await client.post("/v1/experiments/draft", json={"text": text})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["text"])


async def measure(folder: Path) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    different: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        async with open_daemon(Path(scratch)) as parts, parts.client() as client:
            for path, text in distinct(folder, "*.yaml"):
                if is_experiment(text):
                    result = outcome(text)
                    counts[f"files {result[0]}"] += 1
                    if outcome(await saved(client, text)) != result:
                        different.append(str(path))
            for path, text in distinct(folder, "*.sh"):
                if not RUNS.search(text):
                    continue
                answer = (await client.post("/v1/experiments/import-verl", json={"text": text})).json()
                try:
                    imported = import_file(path).text
                except ConfigErrors as errors:
                    counts["scripts not imported"] += 1
                    if [error.what for error in errors.errors] != [error["what"] for error in answer["errors"]]:
                        different.append(str(path))
                    continue
                result = outcome(imported)
                counts[f"scripts {result[0]}"] += 1
                if outcome(await saved(client, answer["text"])) != result:
                    different.append(str(path))
    return {"outcomes": dict(sorted(counts.items())), "files": counts.total(), "different": different}


def main() -> None:
    folder = Path(sys.argv[1])
    figures = asyncio.run(measure(folder))
    assert figures["files"], f"no file is below {folder}"
    tell(figures)
    assert not figures["different"], "the studio changed a file"


if __name__ == "__main__":
    main()

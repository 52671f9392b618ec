"""`import_file`, `import_script` and `import_command`: what veRL was given becomes the text of an experiment file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rftd.daemon.config.issue import Issue, LimitIssue, SyntaxIssue, report
from rftd.daemon.config.loading import read_text
from rftd.daemon.config.source import SourceMap, SourcePlace
from rftd.daemon.config.verl.config_files import ConfigFiles
from rftd.daemon.config.verl.draft import ExperimentDraft, ImportLine
from rftd.daemon.config.verl.gaps import drafted
from rftd.daemon.config.verl.learning import put_learning
from rftd.daemon.config.verl.pacing import pace_of
from rftd.daemon.config.verl.reward_plugin import VerlReward, verl_reward
from rftd.daemon.config.verl.running import put_running
from rftd.daemon.config.verl.settings import VerlSettings, command_settings, script_settings, tree_settings
from rftd.daemon.config.verl.shell.reading import read_script
from rftd.daemon.config.verl.shell.script import ShellChoices
from rftd.daemon.config.verl.shell.word import ShellProblem, ShellWord
from rftd.daemon.config.yaml_source import parse_yaml

_COMMAND: Final = "<command line>"
_SCRIPT_CHARS: Final = 1 << 17
"""The longest script that is read: veRL's own have a tenth of it."""


@dataclass(frozen=True, slots=True)
class ImportedExperiment:
    """An experiment file, and what became of each key."""

    text: str
    lines: tuple[ImportLine, ...]
    reward: VerlReward | None = None
    """The reward function that it names, for which there is no reward here."""


def import_file(
    path: Path | str,
    words: Sequence[str] = (),
    *,
    sync_offset: int = 0,
    choices: ShellChoices | None = None,
    config_dir: Path | None = None,
) -> ImportedExperiment:
    """The experiment of a shell script, or of a Hydra file by its suffix `.yaml`, with overrides over it.

    Raises ConfigErrors with every error.
    """
    text = read_text(Path(path))
    files = ConfigFiles(Path(path), config_dir)
    if Path(path).suffix in (".yaml", ".yml"):
        return import_tree(text, str(path), words, sync_offset=sync_offset, files=files)
    return import_script(text, str(path), words, sync_offset=sync_offset, choices=choices, files=files)


def import_script(
    text: str,
    origin: str,
    words: Sequence[str] = (),
    *,
    sync_offset: int = 0,
    choices: ShellChoices | None = None,
    files: ConfigFiles | None = None,
) -> ImportedExperiment:
    """The experiment of a shell script, of which nothing is run. Raises ConfigErrors."""
    # Lines as the shell counts them, also of a file that was written on Windows.
    text = text.replace("\r\n", "\n").replace("\0", " ")
    source = SourceMap(origin, text.split("\n"))
    if len(text) > _SCRIPT_CHARS:
        what = f"longer than {_SCRIPT_CHARS:,} characters"
        raise report([Issue((), what, "give the command line alone, after `--`", LimitIssue)], source)
    try:
        settings = script_settings(read_script(text, source, choices), source, files)
    except ShellProblem as problem:
        raise report([problem.issue], source) from None
    return _imported(settings, words, sync_offset)


def import_tree(
    text: str, origin: str, words: Sequence[str] = (), *, sync_offset: int = 0, files: ConfigFiles | None = None
) -> ImportedExperiment:
    """The experiment of a Hydra file. Raises ConfigErrors."""
    tree, source, issues = parse_yaml(text, origin)
    if not isinstance(tree, dict):
        what = "the file is empty" if tree is None else "the file must be a mapping of veRL's sections"
        raise report([*issues, Issue((), what, "is it veRL's?", SyntaxIssue)], source)
    settings = tree_settings(tree, source, files)
    settings.issues[:0] = issues
    return _imported(settings, words, sync_offset)


def import_command(words: Sequence[str], *, sync_offset: int = 0, config_dir: Path | None = None) -> ImportedExperiment:
    """The experiment of a command line that a shell has taken apart. Raises ConfigErrors."""
    settings = command_settings(_given_words(words), SourceMap(_COMMAND), ConfigFiles(folder=config_dir))
    return _imported(settings, (), sync_offset)


def _given_words(words: Sequence[str]) -> list[ShellWord]:
    return [ShellWord(word, SourcePlace(f"{_COMMAND}, word {number}")) for number, word in enumerate(words, start=1)]


def _imported(settings: VerlSettings, words: Sequence[str], sync_offset: int) -> ImportedExperiment:
    """Applies the rules, then each row that no rule has taken. Raises everything that was wrong."""
    over = command_settings(_given_words(words), settings.source)
    settings.given.update(over.given)
    settings.issues += over.issues
    settings.remarks += over.remarks
    # Last of all: a reference follows an override, wherever it stands.
    settings.resolve()
    if not settings.given and not settings.issues:
        settings.wrong(SourcePlace(settings.source.origin), "", "gives no key", "give key=value", SyntaxIssue)
    if settings.issues:
        raise report(settings.issues, settings.source)

    def rules(draft: ExperimentDraft) -> None:
        pace = pace_of(draft)
        put_learning(draft, pace)
        put_running(draft, pace, sync_offset=sync_offset)

    draft = drafted(settings, rules)
    draft.finish()
    if settings.issues:
        raise report(settings.issues, settings.source)
    text = draft.text(f"Written by `rftd import-verl` from {settings.source.origin}.")
    return ImportedExperiment(text, tuple(draft.lines), verl_reward(settings))

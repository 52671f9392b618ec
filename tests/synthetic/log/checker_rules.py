"""The rules that `rftd verify` checks, in the order of docs/concepts.md."""

from __future__ import annotations

OF_THE_LOG = (
    "undamaged",
    "gapless",
    "chain",
    "heads-remembered",
    "readable",
    "unique",
    "verdicts-name-a-letter",
    "submitted",
    "files-are-whole",
    "ids-are-indexed",
)
OF_AN_EXPERIMENT = (
    "answers-have-a-lease",
    "groups-close-once",
    "members-are-their-experiences",
    "no-task-skipped",
    "retries-have-a-cause",
    "windows-keep-weights",
    "rows-in-order",
    "plans-name-what-is-there",
    "staleness-bounded",
    "books-balance",
    "trained-once",
    "announcements-have-a-step",
    "evals-are-their-scores",
    "fences-come-first",
    "spine-is-as-read",
    "completed-is-complete",
    "forks-share-history",
)

"""`HubId`: the name of a model or a dataset on the Hugging Face hub, as `owner/name` or `owner/name@revision`."""

from __future__ import annotations

import re
from typing import Final, NamedTuple, Self

_WORD: Final = r"[A-Za-z0-9][\w.-]*"
"""Pattern of an owner, a name or a revision."""
HUB_ID: Final = re.compile(rf"(?P<owner>{_WORD})/(?P<name>{_WORD})(?:@(?P<revision>{_WORD}))?")
"""Pattern of a name on the hub."""
MODEL: Final = "model"
"""Kind of repository with a model."""
DATASET: Final = "dataset"
"""Kind of repository with a dataset."""


class HubId(NamedTuple):
    """A model or a dataset of the hub, at a revision."""

    owner: str
    """Owner of the repository."""
    name: str
    """Name of the repository."""
    revision: str = "main"
    """Branch, tag or commit."""

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Returns the parsed id, with revision `main` by default; None for any other text."""
        match = HUB_ID.fullmatch(text)
        return None if match is None else cls(match["owner"], match["name"], match["revision"] or "main")

    @property
    def repository(self) -> str:
        """The name of the repository, as `owner/name`, without the revision."""
        return f"{self.owner}/{self.name}"

    def fetch_command(self, kind: str) -> str:
        """Returns the command for downloading the repository into the user's cache."""
        words = ["hf", "download", self.repository]
        words += ["--repo-type", DATASET] if kind == DATASET else []
        words += ["--revision", self.revision] if self.revision != "main" else []
        return " ".join(words)

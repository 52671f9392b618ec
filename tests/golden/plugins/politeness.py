# politeness.py
"""A reward that asks another model."""

from rftd.workers.api import Message, RolloutError


class Politeness:
    """1 for an answer that the first auxiliary model calls polite, else 0."""

    async def score(self, response, truth, task, auxiliary_models):
        question = Message("user", f"Is this polite? Answer yes or no.\n\n{response}")
        answer = await auxiliary_models[0].chat([question])
        said = answer.text.strip().lower().rstrip(".")
        if said not in ("yes", "no"):
            raise RolloutError(f"the judge said {answer.text[:100]!r}, neither yes nor no")
        return float(said == "yes")

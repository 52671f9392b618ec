# two_tries.py
"""A workflow that lets the model try again, and a reward that prefers short answers."""

from rftd.workers.api import Trajectory


class ShortAnswer:
    """1 for the right answer, a little less the longer it is."""

    def __init__(self, per_character: float = 0.001) -> None:
        self.per_character = per_character

    def score(self, response, truth, task):
        right = 1.0 if response.strip().endswith(truth) else 0.0
        return {"right": right, "length": -self.per_character * len(response)}


class TwoTries:
    """Asks, and asks again if the first answer was wrong; both answers are trained."""

    default_reward = "short_answer"

    async def run(self, task, model, reward):
        trajectory = Trajectory()
        response = await model.chat(task.messages)
        trajectory.add(response)
        score = await reward.score(response.text, task, turns=trajectory.turns)
        if score.value <= 0.5 and not response.truncated:
            more = model.tokenizer.encode("\nThat is wrong. Again: " + task.prompt)
            response = await model.generate([*trajectory.tokens, *more])
            trajectory.add(response)
            score = await reward.score(response.text, task, turns=trajectory.turns)
        return trajectory.result(score)

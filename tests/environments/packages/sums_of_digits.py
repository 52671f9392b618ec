"""A taskset of verifiers v1, installed by a folder on the path."""

from collections.abc import Iterator

import verifiers.v1 as vf

__all__ = ["DigitSums"]


class DigitSumData(vf.TaskData):
    answer: int


class DigitSum(vf.Task[DigitSumData]):
    @vf.reward(weight=0.5)
    async def right(self, trace: vf.Trace) -> float:
        return float(str(self.data.answer) in trace.last_reply)

    @vf.metric
    async def answer_length(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))


class DigitSums(vf.Taskset[DigitSum, vf.TasksetConfig]):
    def load(self) -> Iterator[DigitSum]:
        for number in range(20):
            yield DigitSum(DigitSumData(prompt=f"{number}+{number}?", answer=2 * number), self.config.task)

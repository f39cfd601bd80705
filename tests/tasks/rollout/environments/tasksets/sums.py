"""Sums to be said as a number: one message, and a reward that reads it."""

import re

import verifiers.v1 as vf


class SumsConfig(vf.TasksetConfig):
    count: int = 3


class SumsData(vf.TaskData):
    answer: int


class SumsTask(vf.Task[SumsData]):
    def worth(self, reply: str) -> float:
        numbers = re.findall(r"-?\d+", reply)
        return float(bool(numbers) and int(numbers[-1]) == self.data.answer)

    @vf.reward(weight=0.9)
    async def right(self, trace: vf.Trace) -> float:
        return self.worth(trace.last_reply)

    @vf.reward(weight=0.1)
    async def short(self, trace: vf.Trace) -> float:
        return float(0 < len(trace.last_reply) <= 20)

    async def validate(self, runtime: vf.Runtime) -> bool:
        return self.worth(f"It is {self.data.answer}.") == 1.0


class SumsTaskset(vf.Taskset[SumsTask, SumsConfig]):
    def load(self) -> list[SumsTask]:
        pairs = [(number + 2, 7 * number + 5) for number in range(self.config.count)]
        return [
            SumsTask(
                SumsData(prompt=f"What is {a} + {b}?", system_prompt="Answer briefly.", answer=a + b), self.config.task
            )
            for a, b in pairs
        ]


__all__ = ["SumsTaskset"]

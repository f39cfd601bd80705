"""A stockroom to be brought to its list: several turns, tools, and a state that they change."""

import verifiers.v1 as vf
from pydantic import Field

LISTS = [
    ({"bolts": 3}, {"bolts": 5}),
    ({"nuts": 4, "pins": 1}, {"nuts": 1, "pins": 1}),
    ({"bolts": 2}, {"bolts": 2, "nuts": 1}),
    ({"pins": 6}, {"pins": 2}),
]


class Stock(vf.State):
    amounts: dict[str, int] = Field(default={})


class StockroomTools(vf.Toolset[vf.ToolsetConfig, Stock]):
    TOOL_PREFIX = None

    @vf.tool
    def count(self) -> str:
        """List what is in stock."""
        return ", ".join(f"{name}: {amount}" for name, amount in self.state.amounts.items())

    @vf.tool
    def move(self, name: str, amount: int) -> str:
        """Bring so many in, or take them out where the amount is negative."""
        left = self.state.amounts.get(name, 0) + amount
        if left < 0:
            raise ValueError(f"there are only {left - amount} {name}")
        self.state.amounts[name] = left
        return f"{name}: {left}"


class StockroomData(vf.TaskData):
    start: dict[str, int]
    goal: dict[str, int]


class StockroomTask(vf.Task[StockroomData, Stock]):
    @classmethod
    def toolsets(cls, config: vf.TaskConfig) -> list[vf.Toolset]:
        return [StockroomTools(vf.ToolsetConfig())]

    async def setup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        trace.state.amounts = dict(self.data.start)

    @vf.reward
    async def in_order(self, trace: vf.Trace) -> float:
        stock, goal = trace.state.amounts, self.data.goal
        return float(all(stock.get(name, 0) == goal.get(name, 0) for name in {*stock, *goal}))


class StockroomTaskset(vf.Taskset[StockroomTask, vf.TasksetConfig]):
    def load(self) -> list[StockroomTask]:
        return [
            StockroomTask(
                StockroomData(name=f"list-{number}", prompt=f"Bring the stock to: {goal}.", start=start, goal=goal),
                self.config.task,
            )
            for number, (start, goal) in enumerate(LISTS)
        ]


__all__ = ["StockroomTaskset"]

"""The suite: its name and its tasks in order."""

from __future__ import annotations

from scripts.suite.model import TaskDefinition
from scripts.suite.tasks import bracket, flange, floor_plan, gasket, gear_cover, plate, shaft, stair

SUITE = "local-2d-v1"
TASKS: tuple[TaskDefinition, ...] = (
    plate.TASK,
    shaft.TASK,
    flange.TASK,
    bracket.TASK,
    gasket.TASK,
    stair.TASK,
    floor_plan.TASK,
    gear_cover.TASK,
)

"""Where the time went from a rollout's place in the quota to its hand-off: the cloud's, EC2's pace, the looks, ours.

The controller's ledger says when it was where; the stand-in of AWS, the plugins and the guests say how long they took.
What none of them accounts for is the controller's own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from benching import Row

from supervisor.hosts.ec2_asking import LAUNCH_BURST, LAUNCHES_PER_S
from tests.lab.fleet import Answered, FleetLab


@dataclass
class StartTimes:
    """Seconds of each rollout. `overhead` is what the controller added."""

    total: list[float] = field(default_factory=list)
    pace: list[float] = field(default_factory=list)
    cloud: list[float] = field(default_factory=list)
    looks: list[float] = field(default_factory=list)
    before: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    overhead: list[float] = field(default_factory=list)

    def rows(self, *, overhead_s_max: float) -> Iterator[Row]:
        """Medians and 95th percentiles."""
        yield Row("place in the quota to hand-off, 95th percentile", percentile(self.total, 95), None, "s")
        yield Row("  EC2's rate of launches, 95th percentile", percentile(self.pace, 95), None, "s")
        yield Row("  boot, agent, calls, plugin, reset, 95th percentile", percentile(self.cloud, 95), None, "s")
        yield Row("  until the next look saw the agent, 95th percentile", percentile(self.looks, 95), None, "s")
        yield Row("  controller until RunInstances leaves, 95th percentile", percentile(self.before, 95), None, "s")
        yield Row("  controller from the agent to hand-off, 95th percentile", percentile(self.after, 95), None, "s")
        yield Row("controller's own time, median", percentile(self.overhead, 50), None, "s")
        yield Row("controller's own time, 95th percentile", percentile(self.overhead, 95), overhead_s_max, "s")
        both = [own + look for own, look in zip(self.overhead, self.looks, strict=True)]
        yield Row("controller's own time and the look, 95th percentile", percentile(both, 95), None, "s")


def percentile(values: list[float], part: float) -> float:
    """The smallest value that so many percent do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part / 100))] if ordered else float("nan")


def start_times(lab: FleetLab, ledger: list[dict[str, Any]]) -> StartTimes:
    """Of every rollout that was handed off by its first request for an instance."""
    hosts: dict[str, dict[str, float]] = {}
    facts: dict[str, dict[str, Any]] = {}
    # Both clocks are this machine's.
    wall_s = time.time() - time.monotonic()
    for line in ledger:
        event = "asked" if "client_token" in line["detail"] and line["event"] == "intent" else line["event"]
        at_s = datetime.fromisoformat(line["at"]).timestamp() - wall_s
        hosts.setdefault(line["host_id"], {}).setdefault(event, at_s)
        facts.setdefault(line["host_id"], {}).update(line["detail"])
    turns_s = _turns({host_id: at["asked"] for host_id, at in hosts.items() if "asked" in at})
    journal = _Journal(lab)
    times = StartTimes()
    for host_id, at in hosts.items():
        if "handed_off" in at:
            _add(times, at, journal.of(facts[host_id]), turn_s=turns_s[host_id])
    return times


@dataclass(frozen=True)
class _Cloud:
    """One instance as the cloud saw it: times, and how long what happened in between took."""

    arrived_s: float
    agent_at_s: float
    seen_s: float
    calls_s: float
    plugin_s: float
    reset_s: float


def _add(times: StartTimes, at: dict[str, float], cloud: _Cloud, *, turn_s: float) -> None:
    before_s = (at["asked"] - at["intent"]) + max(0.0, cloud.arrived_s - turn_s)
    theirs_s = cloud.calls_s + cloud.plugin_s + cloud.reset_s
    after_s = at["handed_off"] - cloud.seen_s - theirs_s
    times.total.append(at["handed_off"] - at["intent"])
    times.pace.append(turn_s - at["asked"])
    times.cloud.append(cloud.agent_at_s - cloud.arrived_s + theirs_s)
    times.looks.append(cloud.seen_s - cloud.agent_at_s)
    times.before.append(before_s)
    times.after.append(after_s)
    times.overhead.append(before_s + after_s)


def _turns(asked: dict[str, float]) -> dict[str, float]:
    """When the pace of launches lets each request go, in the order in which they came."""
    left, last_s, turns_s = float(LAUNCH_BURST), min(asked.values(), default=0.0), {}
    for host_id, at_s in sorted(asked.items(), key=lambda item: item[1]):
        left = min(LAUNCH_BURST, left + (at_s - last_s) * LAUNCHES_PER_S) - 1
        last_s = at_s
        turns_s[host_id] = at_s + max(0.0, -left / LAUNCHES_PER_S)
    return turns_s


class _Journal:
    """What cloud, plugins and guests noted, by instance."""

    def __init__(self, lab: FleetLab) -> None:
        self._lab = lab
        answered = list(lab.answered)
        self._launches = {item.call.client_token: item for item in answered if item.call.action == "RunInstances"}
        self._sessions: dict[str, Answered] = {}
        for item in answered:
            if item.call.action == "StartSession":
                self._sessions.setdefault(item.call.resources[0], item)
        self._looks = [
            (item, frozenset(_asked_for(item)))
            for item in answered
            if item.call.action == "DescribeInstanceInformation"
        ]
        instance_of = {one.session_id: one.instance_id for one in lab.sessions.all.values()}
        started: dict[int, tuple[str, float]] = {}
        self._plugin_s: dict[str, float] = {}
        for event in lab.plugin.events():
            if event["event"] == "started" and event["session_id"] in instance_of:
                started[event["pid"]] = (instance_of[event["session_id"]], event["spawned_s"])
            elif event["event"] == "ready" and event["pid"] in started:
                instance_id, began_s = started[event["pid"]]
                self._plugin_s.setdefault(instance_id, event["at_s"] - began_s)

    def of(self, facts: dict[str, Any]) -> _Cloud:
        """The instance of these ledger facts."""
        name = facts["instance_id"]
        running_s = self._lab.machines.all[name].running_s
        assert running_s is not None, "it was handed off"
        agent_at_s = running_s + self._lab.agent_s
        looks = [item for item, names in self._looks if name in names and item.call.at_s >= agent_at_s]
        # The controller's poller comes first, then the tunnel's own question.
        calls = [self._sessions[name], *looks[1:2]]
        return _Cloud(
            arrived_s=self._launches[facts["client_token"]].call.at_s,
            agent_at_s=agent_at_s,
            seen_s=looks[0].at_s,
            calls_s=sum(item.at_s - item.call.at_s for item in calls),
            plugin_s=self._plugin_s[name],
            reset_s=self._lab.farm.events[name, "reset"]["took_s"],
        )


def _asked_for(item: Answered) -> Iterator[str]:
    for condition in json.loads(item.call.body or b"{}").get("Filters", []):
        yield from condition["Values"]

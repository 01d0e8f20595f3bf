"""What a controller costs that plays a hundred rollouts on EC2 hosts, and what it adds to the cloud's own delays.

    .venv/bin/python scripts/bench_fleet.py [--mode shared process] [--rollouts 100] [--think-s 10] [--seconds 30]
    .venv/bin/python scripts/bench_fleet.py --quota [--rollouts 100] [--think-s 5]

The command, its preflight, launches, tunnels with a plugin process each, relays, heartbeats and the progress table on a
terminal are the real thing, and so are the brokers; AWS, the plugin's program and the model API are stand-ins on this
machine. All guests live in one process, so that two cores are enough: what is measured is the controller's process
alone. In shared mode that is all pilots too. Numbers stand beside their targets; nothing is asserted.

`--quota` plays all rollouts to their end instead, while the vCPU limit shrinks and grows and subnets run out of room.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benching import Row, cpu_clock_s, peak_rss_mb  # noqa: E402  # the script's own repository comes first
from fleet_times import start_times  # noqa: E402
from fleet_world import Controller, Fleet, fleet  # noqa: E402

from tests.lab.faults import Fault  # noqa: E402

CPU_SHARE_MAX: Final = 0.25
OVERHEAD_S_MAX: Final = 0.25
USED_SHARE_MIN: Final = 0.95
# From the last hand-off to the steady phase.
SETTLE_S: Final = 5.0
START_S_MAX: Final = 600.0
PLAY_S_MAX: Final = 3600.0
# EC2's refill for each account and Region, requests a minute ("Request throttling for the Amazon EC2 API").
RATES_PER_MIN: Final = {"RunInstances": 120.0, "TerminateInstances": 300.0, "DescribeInstances": 1200.0}
# "Running On-Demand G and VT instances", in vCPUs.
G_QUOTA: Final = "L-DB2E81BA"
# How many launches meet a zone without capacity.
FULL_SHARE: Final = 0.1
# When the quota changes in `--quota`, and to which part of what all rollouts would need.
CHANGES: Final = ((0.0, 0.5), (60.0, 0.3), (120.0, 0.4), (180.0, 0.2), (240.0, 0.35))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--mode", nargs="+", choices=("shared", "process"), default=["shared", "process"])
    parser.add_argument("--rollouts", type=int, default=100)
    parser.add_argument("--think-s", type=float, default=10.0, help="how long the model takes for a turn (%(default)s)")
    parser.add_argument("--turns", type=int, default=12, help="turns of a rollout with --quota (%(default)s)")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of the steady phase (%(default)s)")
    parser.add_argument("--boot-s", type=float, default=3.0)
    parser.add_argument("--profile", type=Path, help="write the controller's profile (cProfile) into this file")
    parser.add_argument("--quota", action="store_true")
    options = parser.parse_args()
    for mode in options.mode:
        with tempfile.TemporaryDirectory(prefix="autocad-bench-fleet-") as folder:
            turns = options.turns if options.quota else 1_000_000
            with fleet(
                Path(folder), rollouts=options.rollouts, think_s=options.think_s, turns=turns, boot_s=options.boot_s
            ) as world:
                (_play_short_of_quota if options.quota else _play_steadily)(world, mode, options)
    return 0


def _play_steadily(world: Fleet, mode: str, options: argparse.Namespace) -> None:
    print(f"{mode} mode, {options.rollouts} rollouts, a turn each {options.think_s:g} s")
    with world.controller(mode, profile=options.profile) as controller:
        if not _wait_until_all_play(controller, options.rollouts):
            return
        start_cpu_s, waited = cpu_clock_s(controller.pid), controller.waited_share()
        time.sleep(SETTLE_S)
        calls = len(world.lab.calls)
        requests, cpu_s, at_s = world.turns_played(), cpu_clock_s(controller.pid), time.monotonic()
        time.sleep(options.seconds)
        took_s = time.monotonic() - at_s
        share = (cpu_clock_s(controller.pid) - cpu_s) / took_s
        rate = (world.turns_played() - requests) / took_s
        asked = Counter(call.action for call in world.lab.calls[calls:])
        print(Row("CPU of the controller while all play, of one core", share, CPU_SHARE_MAX, "cores"))
        print(Row("its CPU until all play, for each rollout", start_cpu_s / options.rollouts, None, "s"))
        print(Row("its wait for a core until then, of its CPU (quiet: < 1)", waited, None, ""))
        print(Row("turns of all rollouts", rate, None, "1/s"))
        print(Row("controller's memory at its highest", peak_rss_mb(controller.pid), None, "MB"))
        print(Row("its open files", controller.open_files(), None, ""))
        print(Row("its threads", controller.threads(), None, ""))
        for action, count in sorted(asked.items()):
            print(Row(f"{action}, while all play", count / took_s * 60, RATES_PER_MIN.get(action), "1/min"))
        times = start_times(world.lab, controller.ledger())
        for row in times.rows(overhead_s_max=OVERHEAD_S_MAX):
            print(row)
        _tell_rates(world.lab)
        controller.end()
    print(f"  left alive {len(world.lab.alive())}, sessions left open {len(world.lab.sessions.open_ids())}")


def _wait_until_all_play(controller: Controller, count: int) -> bool:
    until = time.monotonic() + START_S_MAX
    while time.monotonic() < until and controller.is_alive():
        if controller.handed_off() >= count:
            return True
        time.sleep(0.5)
    print(f"  only {controller.handed_off()} of {count} rollouts began; the controller said:")
    print("\n".join(controller.complaints()))
    return False


def _play_short_of_quota(world: Fleet, mode: str, options: argparse.Namespace) -> None:
    lab, needed = world.lab, options.rollouts * 4
    print(f"{mode} mode, {options.rollouts} rollouts of {options.turns} turns of {options.think_s:g} s, short of quota")
    code = G_QUOTA
    chance = random.Random(1)
    full = Fault("error", "InsufficientInstanceCapacity", 500, "We currently do not have sufficient capacity.")
    lab.faults.trouble = lambda action: full if action == "RunInstances" and chance.random() < FULL_SHARE else None
    with world.controller(mode, profile=options.profile) as controller:
        used_s = offered_s = 0.0
        while not controller.has_begun() and controller.is_alive():
            time.sleep(0.05)
        began = last = time.monotonic()
        while controller.is_alive() and time.monotonic() - began < PLAY_S_MAX:
            time.sleep(0.2)
            now = time.monotonic()
            lab.quota[code] = _quota_at(now - began, needed)
            rows = controller.phases()
            used = lab.machines.vcpus_alive()
            # Only while somebody waits for a place, and not while the first wave is launched at EC2's own pace.
            if rows.get("queued", 0) > 0 and now - began > _ramp_s(needed):
                used_s += min(used, lab.quota[code]) * (now - last)
                offered_s += lab.quota[code] * (now - last)
            last = now
        outcomes = controller.outcomes()
    print(Row("outcomes that are not scores", sum(outcomes.values()) - outcomes["scored"], 0, ""))
    print(f"  outcomes: {dict(outcomes)}")
    print(Row("quota unused while rollouts wait for it", 1 - used_s / max(offered_s, 1e-9), 1 - USED_SHARE_MIN, ""))
    _tell_rates(lab)
    print(f"  left alive {len(lab.alive())}, sessions left open {len(lab.sessions.open_ids())}")


def _quota_at(at_s: float, needed: int) -> float:
    return 4 * round(needed / 4 * [part for since_s, part in CHANGES if at_s >= since_s][-1])


def _ramp_s(needed: int) -> float:
    return needed / 4 * CHANGES[0][1] / 1.5


def _tell_rates(lab: Any) -> None:
    statuses = Counter((item.call.action, item.status) for item in lab.answered if not item.call.is_dry_run)
    refused = {f"{action} {status}": n for (action, status), n in sorted(statuses.items(), key=str) if status != 200}
    print(Row("requests over EC2's rate", lab.throttled(), 0, ""))
    print(f"  answers other than 200: {json.dumps(refused)}")


if __name__ == "__main__":
    sys.exit(main())

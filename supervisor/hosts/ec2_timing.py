"""How slow hosts on EC2 are: what `HostTiming` says of them, with the reasons."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from contract.broker_client import Patience
from contract.config import Ec2HostConfig
from supervisor.hosts.ec2_ending import END_S
from supervisor.hosts.ec2_way import MEND_S
from supervisor.hosts.lease import HostTiming

# A heartbeat keeps the lease and the session: four of them fit into the shortest lease (60 s), and SSM ends an idle
# session after a minute at the earliest.
HEARTBEAT_S: Final = 15.0
# Two resets by a broker that starts its CAD program twice in each, and the lease before them.
RESETS_S: Final = 600.0
# What is behind `terminate`: its own bound, the tunnel's (20 s when all of it hangs), and the schedule.
RELEASE_S: Final = END_S + 40.0
# A tunnel is opened again behind the port meanwhile, and that may have to wait until AWS can be reached again: a host
# is lost only when its lease is over.
PATIENCE: Final = Patience(read_s=60.0, lost_s=MEND_S + 60.0)
# The next heartbeat is the repetition.
HEARTBEAT_PATIENCE: Final = Patience(connect_s=5.0, read_s=10.0, tries=1)
# Saving the drawing of a void rollout, and its way through the tunnel.
HAND_OVER_S: Final = 60.0
# A round trip to the Region and back, a new connection through the tunnel, and a frame that is on its way before it.
LAST_LOOK_S: Final = 5.0
# Each costs a pause and 10 s: a broker that was silent for more than three minutes is not coming back.
MISSES_MAX: Final = 8


def timing_of(config: Ec2HostConfig) -> HostTiming:
    """The timing of hosts of this config."""
    return HostTiming(
        # The tunnel may be opened until `boot_s` is over.
        hand_off_s=config.boot_s + RESETS_S,
        release_s=RELEASE_S,
        hand_over_s=HAND_OVER_S,
        last_look_s=LAST_LOOK_S,
        heartbeat_s=HEARTBEAT_S,
        misses_max=MISSES_MAX,
        patience=replace(PATIENCE, lost_s=max(PATIENCE.lost_s, config.lease_s)),
        heartbeat_patience=HEARTBEAT_PATIENCE,
    )

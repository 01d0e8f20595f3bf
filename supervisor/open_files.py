"""How many files this process may have open: as many as its rollouts need, as far as the system lets us."""

from __future__ import annotations

import resource
from typing import Final

# Measured with 100 rollouts on EC2 hosts: 1,578 in process mode, where each has a plugin's and a pilot's pipes, a
# relayed port, connections, logs and child handles; 1,425 in shared mode. Half of it comes on top.
FILES_PER_ROLLOUT: Final = 24
# Threads, clients of AWS, the batch's own files.
FILES_BESIDE: Final = 256


def make_room_for_files(max_concurrency: int) -> None:
    """Raise the soft limit of open files to what so many rollouts need, or to the hard limit if that is less.

    The soft limit of a login is 1,024 on most systems, which sixty rollouts use up. It is never lowered, and not raised
    without need: some programs that we start close every number below it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = FILES_BESIDE + FILES_PER_ROLLOUT * max_concurrency
    wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))

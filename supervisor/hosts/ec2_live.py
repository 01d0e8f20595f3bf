"""What a controller knows of one host while it looks after it."""

from __future__ import annotations

from dataclasses import dataclass, field

from supervisor.cloud.ports import Instance
from supervisor.hosts.ec2_launch import LaunchBook
from supervisor.hosts.ec2_way import Say, Way


@dataclass(slots=True)
class Live:
    """One host. `book` is null for one that an earlier controller launched; `boot_until_s` is a time of `elapsed_s`.

    `ways` has the way to it, once it is opened.
    """

    rollout_id: str
    say: Say
    book: LaunchBook | None = None
    instance: Instance | None = None
    boot_until_s: float = 0.0
    ways: list[Way] = field(default_factory=list)

    @property
    def instance_ids(self) -> list[str]:
        """All that may be watched for it."""
        launched = [] if self.book is None else self.book.instance_ids
        return launched if self.instance is None else [*launched, self.instance.instance_id]


def end_of(instance: Instance) -> str:
    """How it ended, for people."""
    reason = f" ({instance.reason})" if instance.reason else ""
    return f"instance {instance.instance_id} is {instance.state.value}{reason}"

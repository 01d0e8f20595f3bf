"""What preflight reads and reckons for EC2 hosts before their checks run: AWS's answers, the certificate, the wave."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar, cast

from contract.batch_records import BatchState
from contract.config import Ec2HostConfig
from contract.errors import StateError
from contract.phases import Phase
from contract.records import read_record
from contract.run_dir import BatchDir
from supervisor.aws_account import AwsCredentialsMissing
from supervisor.checks.subject import CertificateReading, Wave, may_ask_aws
from supervisor.cloud.facts import CloudFacts
from supervisor.cloud.families import family_of
from supervisor.cloud.ports import CloudError, Instance
from supervisor.cloud.quota import QuotaAdmission, admit_instances, is_counted
from supervisor.config_reading import Draft
from supervisor.machine import Machine, PluginAnswer

T = TypeVar("T")
CloudAnswer = CloudFacts | AwsCredentialsMissing | None
# AWS's certificates have about 1 kB; a file with those of all Regions stays far below this.
CERTIFICATE_BYTES_MAX: Final = 1024 * 1024
_UNFINISHED: Final = frozenset({Phase.QUEUED, Phase.STARTING, Phase.HANDED_OFF, Phase.EVALUATING})


def start_reading(draft: Draft, machine: Machine) -> Callable[[], CloudAnswer]:
    """Begin to ask AWS about EC2 hosts, beside whatever else is read; the result waits for the answer.

    Nothing is asked, not even for credentials, while the broker's version is not supported.
    """
    host = draft.config.host
    is_readable = draft.is_usable("host") and draft.is_usable("host.profile")
    if not isinstance(host, Ec2HostConfig) or not is_readable or not may_ask_aws(draft):
        return lambda: None
    return _beside(lambda: machine.read_cloud(host))


def start_plugin(draft: Draft, machine: Machine) -> Callable[[], PluginAnswer | None]:
    """Begin to ask the Session Manager plugin for its version, where there are EC2 hosts; the result waits for it."""
    is_needed = isinstance(draft.config.host, Ec2HostConfig) and draft.is_usable("host")
    return _beside(machine.session_plugin) if is_needed else lambda: None


def read_certificate(draft: Draft) -> CertificateReading:
    """The host's identity certificate. Never raises for what the path leads to."""
    host = draft.config.host
    if not isinstance(host, Ec2HostConfig):
        return CertificateReading()
    path = draft.root / host.identity_certificate
    try:
        with path.open("rb") as stream:
            content = stream.read(CERTIFICATE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return CertificateReading(problem=reason)
    if len(content) > CERTIFICATE_BYTES_MAX:
        return CertificateReading(problem=f"it is larger than {CERTIFICATE_BYTES_MAX} bytes")
    return CertificateReading(content)


def wave_of(draft: Draft, *, enabled: int, resumes: Path | None, cloud: CloudAnswer) -> Wave | None:
    """min(enabled, max_concurrency) instances; of a batch that is resumed, only for what it has not finished.

    What such a batch has running already is not launched again, and AWS counts it as used.
    """
    host = draft.config.host
    usable = all(draft.is_usable(field) for field in ("host", "max_concurrency", "rollouts"))
    if not isinstance(host, Ec2HostConfig) or not usable:
        return None
    state = _state(resumes) if resumes is not None else None
    if state is None:
        return Wave(min(enabled, draft.config.max_concurrency))
    unfinished = sum(row.phase in _UNFINISHED for row in state.rollouts)
    wanted = min(unfinished, draft.config.max_concurrency)
    running = min(wanted, _own_instances(cloud, state.batch_id, host))
    return Wave(wanted - running, running)


def admit_wave(draft: Draft, wave: Wave | None, cloud: CloudAnswer) -> QuotaAdmission | None:
    """What the quota holds of the wave's new instances; null when a number of it is not known."""
    host = draft.config.host
    if wave is None or not isinstance(host, Ec2HostConfig) or not isinstance(cloud, CloudFacts):
        return None
    quota, machine_type = cloud.quota, cloud.machine_type
    use = cloud.use_for(host.instance_type)
    if quota is None or isinstance(quota, CloudError) or use is None:
        return None
    if machine_type is None or isinstance(machine_type, CloudError):
        return None
    return admit_instances(wanted=wave.new, vcpus_per_instance=machine_type.vcpus, quota=quota, use=use)


def _beside(ask: Callable[[], T]) -> Callable[[], T]:
    """Run `ask` in a thread of its own. The result waits for it, and raises what it raised."""
    answers: queue.SimpleQueue[tuple[T | None, Exception | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put((ask(), None))
        except Exception as error:  # noqa: BLE001  # it is raised again where the answer is wanted
            answers.put((None, error))

    threading.Thread(target=run, name="read-beside", daemon=True).start()

    def wait() -> T:
        answer, error = answers.get()
        if error is not None:
            raise error
        return cast(T, answer)

    return wait


def _state(folder: Path) -> BatchState | None:
    try:
        return read_record(BatchDir(folder).state, BatchState)
    # The check of the run folder says what is wrong with it.
    except (StateError, OSError):
        return None


def _own_instances(cloud: CloudAnswer, batch_id: str, host: Ec2HostConfig) -> int:
    if not isinstance(cloud, CloudFacts) or isinstance(cloud.instances, CloudError):
        return 0
    family = family_of(host.instance_type)

    def is_own(instance: Instance) -> bool:
        tags = instance.tags
        return tags.get("BatchId") == batch_id and tags.get("Owner") == host.owner and is_counted(instance, family)

    return sum(map(is_own, cloud.instances))

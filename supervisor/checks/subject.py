"""What a check may look at: the config as far as it can be read, and everything that was read because of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import SecretStr

from contract.broker_api import SUPPORTED_BROKER_VERSIONS
from contract.config import Assignment, BatchConfig
from contract.pricing import PriceTable
from supervisor.admission import Admission
from supervisor.aws_account import AwsCredentialsMissing
from supervisor.catalogs.entries import Catalog, CatalogError
from supervisor.choices import Choices
from supervisor.cloud.facts import CloudFacts
from supervisor.cloud.quota import QuotaAdmission
from supervisor.config_reading import Draft
from supervisor.issues import Issue
from supervisor.machine import Machine, PluginAnswer
from supervisor.suite import LoadedTasks

# What a check says that would have looked at AWS.
NOT_ASKED: Final = "not asked, because broker_version is not supported"


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line adds to the config. `resumes` is the folder of the batch that is to go on, if any."""

    allow_partial: bool = False
    skip_direct_model_check: bool = False
    output_dir: Path | None = None
    resumes: Path | None = None


@dataclass(frozen=True, slots=True)
class PricesReading:
    """The price table, null when the config names none or it cannot be read."""

    table: PriceTable | None
    issues: tuple[Issue, ...] = ()


@dataclass(frozen=True, slots=True)
class CertificateReading:
    """The bytes of the identity certificate, null when the host has none or it cannot be read; then why."""

    content: bytes | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Wave:
    """The instances that run at once: those to be launched, and those that a batch which is resumed has already."""

    new: int
    running: int = 0


@dataclass(frozen=True, slots=True)
class Subject:
    """The one argument of every check. `admission` is null when its inputs cannot be read.

    `aws_missing` says why there are no AWS credentials, where some are needed. `catalogs` has what came of every model
    list that was asked for, by provider.

    `plugin` and `cloud` have what the Session Manager plugin and AWS said; null when they were not asked. `wave` is
    null when its inputs cannot be read. `quota` is what the vCPU quota holds of the wave's new instances; null when a
    number of it is not known.
    """

    draft: Draft
    options: Options
    keys: Mapping[str, SecretStr]
    machine: Machine
    tasks: LoadedTasks
    prices: PricesReading
    admission: Admission | None
    choices: Choices
    aws_missing: AwsCredentialsMissing | None
    catalogs: Mapping[str, Catalog | CatalogError]
    certificate: CertificateReading
    plugin: PluginAnswer | None
    cloud: CloudFacts | AwsCredentialsMissing | None
    wave: Wave | None
    quota: QuotaAdmission | None

    @property
    def may_ask_aws(self) -> bool:
        return may_ask_aws(self.draft)

    @property
    def config(self) -> BatchConfig:
        return self.draft.config

    @property
    def root(self) -> Path:
        return self.draft.root

    def enabled(self) -> Iterator[tuple[str, Assignment]]:
        """The readable enabled entries in order, each with its field path in the file."""
        for index, assignment in enumerate(self.config.rollouts):
            if assignment.enabled:
                yield self.draft.place(index), assignment

    def users_of(self, task: str) -> list[tuple[str, Assignment]]:
        """The enabled entries that play `task`."""
        return [(place, assignment) for place, assignment in self.enabled() if assignment.task == task]


def may_ask_aws(draft: Draft) -> bool:
    """Not before the broker in the image is known to speak a version that we speak: until then no call goes to AWS."""
    return draft.is_usable("broker_version") and draft.config.broker_version in SUPPORTED_BROKER_VERSIONS

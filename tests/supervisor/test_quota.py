"""An instance type counts against one quota, and no more instances are admitted than it can hold."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.cloud.families import FAMILIES, family_of, refusal_of
from supervisor.cloud.ports import Instance, InstanceState, Quota, Reservation
from supervisor.cloud.quota import QuotaUse, admit_instances, count_use, counted_types

STANDARD = "L-1216C47A"
GRAPHICS = "L-DB2E81BA"
# Types of every family, with the quota that AWS's table gives them.
TYPES: list[tuple[str, str | None, bool]] = [
    ("a1.large", STANDARD, True),
    ("c7i.xlarge", STANDARD, True),
    ("d3en.xlarge", STANDARD, True),
    ("h1.2xlarge", STANDARD, True),
    ("i4i.large", STANDARD, True),
    ("im4gn.large", STANDARD, True),
    ("is4gen.medium", STANDARD, True),
    ("m5.large", STANDARD, True),
    ("r7iz.large", STANDARD, True),
    ("t3.micro", STANDARD, True),
    ("z1d.large", STANDARD, True),
    ("g4dn.xlarge", GRAPHICS, True),
    ("g6.xlarge", GRAPHICS, True),
    ("gr6.4xlarge", GRAPHICS, True),
    ("vt1.3xlarge", GRAPHICS, True),
    ("p5.48xlarge", "L-417A185B", False),
    ("f1.2xlarge", "L-74FC7D96", False),
    ("x2idn.16xlarge", "L-7295265B", False),
    ("inf2.xlarge", "L-1945791B", False),
    ("trn1.2xlarge", "L-2C3B7624", False),
    ("dl1.24xlarge", "L-6E869C2A", False),
    ("u7i-12tb.224xlarge", "L-43DA4232", False),
    ("u-6tb1.metal", "L-43DA4232", False),
    ("hpc7a.12xlarge", "L-F7808C92", False),
    ("mac2.metal", None, False),
    ("mac-m4.metal", None, False),
    ("q9.large", None, False),
]
VCPUS = {"m5.large": 2, "c7i.xlarge": 4, "g6.xlarge": 4, "vt1.3xlarge": 12, "p5.48xlarge": 192, "im4gn.large": 2}


@pytest.mark.parametrize(("instance_type", "code", "is_supported"), TYPES, ids=[row[0] for row in TYPES])
def test_each_type_has_the_quota_of_its_whole_prefix(instance_type: str, code: str | None, is_supported: bool) -> None:
    """Reading only the first letter would count Inferentia as Standard and refuse nothing."""
    family = family_of(instance_type)

    assert (code, is_supported) == (family.quota_code, family.is_supported)


def test_a_refusal_names_the_type_its_quota_and_the_quotas_code() -> None:
    """The operator sees which limit the type would have had, and that this is not about its size."""
    refused = {instance_type: refusal_of(instance_type) for instance_type, _, _ in TYPES}

    assert {row[0] for row in TYPES if row[2]} == {name for name, words in refused.items() if words is None}
    for instance_type, code, is_supported in TYPES:
        words = refused[instance_type]
        assert is_supported or (words is not None and instance_type in words and (code or "") in words)


def test_every_family_of_the_table_is_tried() -> None:
    """A row that no example reaches may have a wrong code."""
    assert set(FAMILIES) == {family_of(row[0]).prefix for row in TYPES} & set(FAMILIES)


def _instance(
    instance_type: str = "m5.large",
    *,
    state: InstanceState = InstanceState.RUNNING,
    lifecycle: str | None = None,
    tenancy: str = "default",
) -> Instance:
    return Instance(
        instance_id="i-0123456789abcdef0",
        state=state,
        instance_type=instance_type,
        image_id="ami-0123456789abcdef0",
        subnet_id=None,
        private_ip=None,
        launched_at=datetime(2026, 1, 1, tzinfo=UTC),
        client_token="",
        lifecycle=lifecycle,
        tenancy=tenancy,
    )


def test_only_on_demand_instances_of_the_same_quota_that_run_or_will_are_counted() -> None:
    """Each exception has a quota of its own; counting it would refuse batches that fit."""
    instances = [
        _instance(),
        _instance("im4gn.large"),
        _instance("c7i.xlarge", state=InstanceState.PENDING),
        _instance(tenancy="dedicated"),
        _instance(tenancy="host"),
        _instance(lifecycle="spot"),
        _instance(lifecycle="capacity-block"),
        _instance(state=InstanceState.STOPPED),
        _instance(state=InstanceState.STOPPING),
        _instance(state=InstanceState.SHUTTING_DOWN),
        _instance(state=InstanceState.TERMINATED),
        _instance("g6.xlarge"),
        _instance("p5.48xlarge"),
        _instance("mac2.metal"),
    ]
    reservations = [Reservation("m5.large", 3), Reservation("g6.xlarge", 5)]

    standard = count_use(instances, reservations, VCPUS, family_of("t3.micro"))
    graphics = count_use(instances, reservations, VCPUS, family_of("gr6.4xlarge"))

    assert QuotaUse(running_vcpus=6, pending_vcpus=4, reserved_vcpus=6) == standard
    assert QuotaUse(running_vcpus=4, pending_vcpus=0, reserved_vcpus=20) == graphics
    assert {"m5.large", "im4gn.large", "c7i.xlarge"} == counted_types(instances, reservations, family_of("t3.micro"))


def test_a_family_without_a_quota_counts_nothing() -> None:
    """Two unknown families do not share a quota, although neither has a code."""
    use = count_use([_instance("q9.large"), _instance("mac2.metal")], [], {"q9.large": 2}, family_of("q9.large"))

    assert QuotaUse() == use


def test_a_type_whose_size_nobody_knows_is_named_and_not_guessed() -> None:
    """Somebody else's retired type must neither stop a batch nor disappear silently."""
    use = count_use([_instance("m1.small"), _instance()], [Reservation("c1.medium", 1)], VCPUS, family_of("m5.large"))

    assert QuotaUse(running_vcpus=2, uncounted_types=("c1.medium", "m1.small")) == use


def test_the_admission_shows_every_number() -> None:
    """An operator who is refused asks for a higher quota with the numbers of the plan."""
    admission = admit_instances(
        wanted=5,
        vcpus_per_instance=4,
        quota=Quota(STANDARD, 32, is_default=False),
        use=QuotaUse(running_vcpus=6, pending_vcpus=4, reserved_vcpus=2),
        launching=2,
    )

    assert {
        "quota_code": STANDARD,
        "quota_name": "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances",
        "limit_vcpus": 32,
        "is_default_limit": False,
        "running_vcpus": 6,
        "pending_vcpus": 4,
        "reserved_vcpus": 2,
        "launching_vcpus": 8,
        "used_vcpus": 20,
        "free_vcpus": 12,
        "vcpus_per_instance": 4,
        "needed_vcpus": 20,
        "wanted": 5,
        "fits": 3,
        "admitted": 3,
        "limiting_factor": "quota",
        "uncounted_types": [],
    } == admission.to_json()


VCPU_COUNTS = st.integers(min_value=0, max_value=2_000)


@given(
    wanted=st.integers(min_value=0, max_value=500),
    vcpus=st.integers(min_value=1, max_value=224),
    limit=VCPU_COUNTS,
    running=VCPU_COUNTS,
    pending=VCPU_COUNTS,
    reserved=VCPU_COUNTS,
    launching=st.integers(min_value=0, max_value=100),
)
def test_what_is_admitted_fits_and_one_more_would_not(
    wanted: int, vcpus: int, limit: int, running: int, pending: int, reserved: int, launching: int
) -> None:
    """Both directions cost: one too many is refused by AWS, one too few leaves paid quota idle."""
    use = QuotaUse(running, pending, reserved)

    admission = admit_instances(
        wanted=wanted, vcpus_per_instance=vcpus, quota=Quota(STANDARD, limit, False), use=use, launching=launching
    )

    taken = running + pending + reserved + launching * vcpus
    assert taken == admission.used_vcpus
    assert 0 <= admission.admitted <= wanted
    assert admission.admitted == 0 or taken + admission.admitted * vcpus <= limit
    assert admission.admitted == wanted or taken + (admission.admitted + 1) * vcpus > limit
    assert ("quota" if admission.admitted < wanted else "wanted") == admission.limiting_factor
    assert admission.admitted == min(wanted, admission.fits)


@given(
    limits=st.tuples(VCPU_COUNTS, VCPU_COUNTS),
    used=VCPU_COUNTS,
    launching=st.tuples(st.integers(min_value=0, max_value=50), st.integers(min_value=0, max_value=50)),
)
def test_more_quota_and_fewer_launches_never_admit_less(
    limits: tuple[int, int], used: int, launching: tuple[int, int]
) -> None:
    """The gate waits for room; room that closes when quota grows would make it wait for ever."""

    def admitted(limit: int, under_way: int) -> int:
        quota = Quota(STANDARD, limit, False)
        use = QuotaUse(running_vcpus=used)
        return admit_instances(wanted=40, vcpus_per_instance=4, quota=quota, use=use, launching=under_way).admitted

    assert admitted(max(limits), min(launching)) >= admitted(min(limits), max(launching))


STATES = st.sampled_from(list(InstanceState))
INSTANCES = st.builds(
    _instance,
    st.sampled_from([*VCPUS, "mac2.metal"]),
    state=STATES,
    lifecycle=st.sampled_from([None, None, "spot"]),
    tenancy=st.sampled_from(["default", "dedicated", "host"]),
)


@given(st.lists(INSTANCES, max_size=12), st.lists(INSTANCES, max_size=12))
def test_use_is_the_sum_over_its_instances(some: list[Instance], others: list[Instance]) -> None:
    """Pages, orders and owners of instances do not matter to the account's quota."""
    family = family_of("g6.xlarge")

    together = count_use([*some, *others], [], VCPUS, family)

    first, second = count_use(some, [], VCPUS, family), count_use(others, [], VCPUS, family)
    assert first.total_vcpus + second.total_vcpus == together.total_vcpus
    assert first.pending_vcpus + second.pending_vcpus == together.pending_vcpus
    assert counted_types([*some, *others], [], family) <= {"g6.xlarge", "vt1.3xlarge"}

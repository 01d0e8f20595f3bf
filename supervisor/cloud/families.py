"""Which vCPU quota an instance type counts against. A table of facts.

Source of the codes: EC2 User Guide, "On-Demand Instance quotas". A quota is per account and per Region, in vCPUs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

# AWS's own name of the service in Service Quotas.
QUOTA_SERVICE: Final = "ec2"
STANDARD_CODE: Final = "L-1216C47A"
GRAPHICS_CODE: Final = "L-DB2E81BA"


@dataclass(frozen=True, slots=True)
class Family:
    """The leading letters of an instance type, and the on-demand quota of all types that begin so.

    `quota_code` is null where no vCPU quota is known: Mac types have a quota of Dedicated Hosts for each type, and
    families that the table does not have are unknown. `is_supported`: this harness launches such types.
    """

    prefix: str
    quota_code: str | None
    quota_name: str
    is_supported: bool = False


_STANDARD: Final = "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances"
_GRAPHICS: Final = "Running On-Demand G and VT instances"

FAMILIES: Final[dict[str, Family]] = {
    family.prefix: family
    for family in (
        # Whole prefixes: `im` and `is` are Standard like `i`, but `inf` is not; nor are `dl`, `hpc`, `mac` and `trn`.
        *(
            Family(prefix, STANDARD_CODE, _STANDARD, is_supported=True)
            for prefix in ("a", "c", "d", "h", "i", "im", "is", "m", "r", "t", "z")
        ),
        *(Family(prefix, GRAPHICS_CODE, _GRAPHICS, is_supported=True) for prefix in ("g", "gr", "vt")),
        Family("p", "L-417A185B", "Running On-Demand P instances"),
        Family("f", "L-74FC7D96", "Running On-Demand F instances"),
        Family("x", "L-7295265B", "Running On-Demand X instances"),
        Family("inf", "L-1945791B", "Running On-Demand Inf instances"),
        Family("trn", "L-2C3B7624", "Running On-Demand Trn instances"),
        Family("dl", "L-6E869C2A", "Running On-Demand DL instances"),
        Family("u", "L-43DA4232", "Running On-Demand High Memory instances"),
        Family("hpc", "L-F7808C92", "Running On-Demand HPC instances"),
        Family("mac", None, "Running Dedicated Mac Hosts"),
    )
}


def family_of(instance_type: str) -> Family:
    """The family of a type like `g4dn.xlarge`; one that the table does not have has no quota and is not supported."""
    letters = re.match(r"[a-z]+", instance_type)
    prefix = letters.group() if letters else instance_type
    return FAMILIES.get(prefix) or Family(prefix, None, "an unknown quota")


def refusal_of(instance_type: str) -> str | None:
    """Why this harness does not launch the type, with the quota's code; null for a supported one."""
    family = family_of(instance_type)
    if family.is_supported:
        return None
    only = "only the Standard and the G and VT families are supported"
    if family.prefix not in FAMILIES:
        return f"instance type {instance_type!r} is of the family {family.prefix!r}, which is not known here; {only}"
    code = family.quota_code or "one for each Mac type"
    return f"instance type {instance_type!r} counts against {family.quota_name!r} ({code}); {only}"

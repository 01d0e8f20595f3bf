"""The facts about a drawing that cannot be used: a complete record with nothing in it. Needs no drawing library."""

from __future__ import annotations

import hashlib
from typing import Any

from broker.evaluator.settings import identity
from contract.metadata import Evaluator, InvalidCode, Metadata


def invalid_metadata(
    content: bytes, code: InvalidCode, message: str, *, evaluator: Evaluator | None = None
) -> Metadata:
    """The record of a drawing at fault, signed by the pinned evaluator unless another is named."""
    return Metadata.model_validate(
        {
            "schema_version": 4,
            "evaluator": evaluator or identity(),
            "source": source_of(content, acad_version=None),
            "status": "invalid",
            "invalid": {"code": code, "message": message},
            "units": {"insunits": 0, "name": "unitless", "to_mm": None, "measurement": 0},
            "layers": [],
            "blocks": [],
            "inserts": [],
            "entities": [],
            "extents": {"visible": None, "all": None},
            "layouts": [],
            "extents_3d": None,
            "physical_extents_3d": None,
            "counts": {},
            "warnings": [],
        }
    )


def source_of(content: bytes, *, acad_version: str | None) -> dict[str, Any]:
    """What the file is, by its bytes."""
    is_dwg = content.startswith(b"AC1")
    return {
        "format": None if not content else "DWG" if is_dwg else "DXF",
        "acad_version": content[:6].decode("ascii", "replace") if is_dwg else acad_version,
        "sha256": hashlib.sha256(content).hexdigest(),
        "size_bytes": len(content),
    }

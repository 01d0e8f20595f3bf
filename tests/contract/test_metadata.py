"""Facts about a drawing are checked when they are read: schema by schema, field by field."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from pydantic import ValidationError

from contract.metadata import Metadata
from contract.records import dump_pretty
from tests.sketches import metadata, plate

BODIES = {"min": [0, 0, 0], "max": [1, 1, 1], "size": [1, 1, 1], "bodies": [], "unsupported": []}


def document(**changes: Any) -> bytes:
    content: dict[str, Any] = orjson.loads(dump_pretty(metadata(plate())))
    return orjson.dumps(content | changes)


def test_reading_and_writing_again_gives_the_same_bytes() -> None:
    """Digests are taken of them."""
    written = dump_pretty(metadata(plate()))

    assert written == dump_pretty(Metadata.model_validate_json(written))
    assert written.endswith(b"}\n")
    assert b"physical_extents_3d" not in written


def test_schema_four_has_bodies_and_schema_three_has_not() -> None:
    """The field is what makes the difference, also when it is null."""
    four = Metadata.model_validate_json(document(schema_version=4, physical_extents_3d=BODIES))
    none = Metadata.model_validate_json(document(schema_version=4, physical_extents_3d=None))

    assert four.physical_extents_3d is not None
    assert b'"physical_extents_3d": null' in dump_pretty(none)


@pytest.mark.parametrize(
    "changes",
    [
        {"schema_version": 2},
        {"schema_version": 5, "physical_extents_3d": None},
        {"schema_version": 3, "physical_extents_3d": None},
        {"schema_version": 4},
        {"surprise": 1},
        {"status": "invalid"},
        {"invalid": {"code": "empty_drawing", "message": "nothing"}},
        {"entities": [{"kind": "blob"}]},
    ],
)
def test_another_shape_is_rejected(changes: dict[str, Any]) -> None:
    """Facts are used whole or not at all."""
    with pytest.raises(ValidationError):
        Metadata.model_validate_json(document(**changes))


def test_a_number_that_is_none_is_rejected() -> None:
    """JSON has no NaN, and a record has none either."""
    content = document().replace(b'"radius":6.0', b'"radius":NaN', 1)

    with pytest.raises(ValidationError):
        Metadata.model_validate_json(content)

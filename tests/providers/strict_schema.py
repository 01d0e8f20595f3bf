"""What a strict tool schema may say: the intersection of what the vendors accept."""

from __future__ import annotations

from typing import Any, Final

from tests.providers.refusals import Refusal, invalid

KEYWORDS: Final = frozenset(
    {"type", "properties", "required", "additionalProperties", "items", "anyOf", "enum", "const", "minItems"}
    | {"description", "title", "$defs", "$ref"}
)
UNIONS_MAX: Final = 16


def check_strict(schema: Any, where: str) -> None:
    """Raises `Refusal` where the schema leaves the intersection."""
    if not isinstance(schema, dict) or schema.get("type") != "object":
        raise _bad(where, "the root has to be an object")
    unions = _check(schema, where)
    if unions > UNIONS_MAX:
        raise _bad(where, f"{unions} parameters with union types, more than {UNIONS_MAX}")


def _check(schema: Any, where: str) -> int:
    """Check one level and those below. Returns the number of unions."""
    if not isinstance(schema, dict):
        raise _bad(where, "a schema has to be an object")
    unknown = sorted(schema.keys() - KEYWORDS)
    if unknown:
        raise _bad(where, f"{unknown[0]!r} is not supported")
    unions = 0
    if schema.get("minItems", 0) not in (0, 1):
        raise _bad(where, "minItems may be 0 or 1")
    if isinstance(schema.get("type"), list):
        unions += 1
    if schema.get("type") == "object":
        properties = schema.get("properties", {})
        if schema.get("additionalProperties") is not False:
            raise _bad(where, "additionalProperties has to be false")
        if set(schema.get("required", ())) != properties.keys():
            raise _bad(where, "every property has to be required")
        for name, below in properties.items():
            unions += _check(below, f"{where}.{name}")
    if schema.get("type") == "array":
        if "items" not in schema:
            raise _bad(where, "an array needs items")
        unions += _check(schema["items"], f"{where}[]")
    if "anyOf" in schema:
        unions += 1
        for number, variant in enumerate(schema["anyOf"]):
            unions += _check(variant, f"{where}|{number}")
        _check_variants(schema["anyOf"], where)
    return unions


def _check_variants(variants: list[Any], where: str) -> None:
    """Each object variant begins with its discriminator; variants are told apart by their first key."""
    objects = [variant for variant in variants if variant.get("type") == "object"]
    if len(objects) < 2:
        return
    seen = set()
    for variant in objects:
        name = next(iter(variant.get("properties", {})), None)
        words = variant["properties"][name].get("enum", []) if name else []
        if len(words) != 1:
            raise _bad(where, "a variant has to begin with a property of a single value")
        seen.add((name, words[0]))
    if len(seen) != len(objects):
        raise _bad(where, "two variants begin alike")


def _bad(where: str, message: str) -> Refusal:
    return invalid(f"Invalid schema at {where}: {message}", code="invalid_function_parameters")

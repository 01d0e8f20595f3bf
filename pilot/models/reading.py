"""Reading what a model answer says without trusting a single field of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

import orjson
from pydantic import ValidationError

from contract.actions import TOOL_NAME
from contract.pricing import Usage
from pilot.models.answers import telemetry


class BadUsage(Exception):
    """A usage that cannot be true: a count is missing, negative, no integer, or larger than what it is a part of."""


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call as it came. `arguments` is a JSON text on some wires and a JSON value on others."""

    call_id: object
    name: object
    arguments: object


def usable_arguments(calls: list[Call]) -> dict[str, Any] | None:
    """The arguments when this is exactly one `computer_action` call with a JSON object; else null."""
    if len(calls) != 1:
        return None
    call = calls[0]
    if call.name != TOOL_NAME or not isinstance(call.call_id, str) or not call.call_id:
        return None
    arguments = call.arguments
    if isinstance(arguments, str):
        try:
            arguments = orjson.loads(arguments)
        except orjson.JSONDecodeError:
            return None
    return arguments if isinstance(arguments, dict) and is_writable(arguments) else None


def kept_response(body: Mapping[str, Any], fields: tuple[str, ...], headers: Mapping[str, str]) -> dict[str, Any]:
    """What the trace keeps of an answer. The body is empty when it is nested too deep to be written down again."""
    kept: dict[str, Any] = {
        "headers": telemetry(headers),
        "body": {name: body[name] for name in fields if name in body},
    }
    if not is_writable(kept):
        kept["body"] = {}
    return kept


def is_writable(value: object) -> bool:
    """True when JSON can hold this inside a record: deep nesting is read more willingly than it is written."""
    try:
        orjson.dumps([[[[[[[[value]]]]]]]])
    except orjson.JSONEncodeError:
        return False
    return True


def object_at(value: object, *names: str) -> dict[str, Any]:
    """The object that is found under these names; empty when there is none."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def objects_at(value: object, name: str) -> list[dict[str, Any]]:
    """The objects of the list under this name; empty when there is none."""
    found = value.get(name) if isinstance(value, dict) else None
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def texts(blocks: list[dict[str, Any]], field: str = "text") -> str:
    """The words in these blocks, a line for each block."""
    return "\n".join(block[field] for block in blocks if isinstance(block.get(field), str) and block[field])


def count(usage: Mapping[str, Any], name: str, *, default: int | None = None) -> int:
    """A token count. Without a `default` it has to be there. Raises `BadUsage`."""
    value = usage.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise BadUsage(name)
    return value


def details(usage: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The object with a count's parts, empty when it is absent or null. Raises `BadUsage` when it is anything else."""
    value = usage.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadUsage(name)
    return value


def split_writes(written: int, *, short: int, long: int, asked: Literal["5m", "1h"] | None) -> tuple[int, int]:
    """Cache writes by how long they live; what the answer does not split is what was asked for. Raises `BadUsage`."""
    rest = written - short - long
    if rest < 0:
        raise BadUsage("cache writes")
    return (short, long + rest) if asked == "1h" else (short + rest, long)


def part_of_total(total: int, *, cached: int, short: int, long: int, output: int, reasoning: int | None) -> Usage:
    """The buckets where the input count includes what was cached. Raises `BadUsage`."""
    rest = total - cached - short - long
    if rest < 0:
        raise BadUsage("input")
    return disjoint(uncached=rest, cached=cached, short=short, long=long, output=output, reasoning=reasoning)


def disjoint(*, uncached: int, cached: int, short: int, long: int, output: int, reasoning: int | None) -> Usage:
    """The buckets, all apart. A reasoning count that is more than the output it is a part of is unknown."""
    if reasoning is not None and reasoning > output:
        reasoning = None
    try:
        return Usage(
            input=uncached,
            cached_input=cached,
            cache_write=short,
            cache_write_long=long,
            output=output,
            reasoning=reasoning,
        )
    except ValidationError as error:
        raise BadUsage(str(error)) from error


def dollars(value: object) -> Decimal | None:
    """An amount of money that an answer states; null when it is none."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    amount = Decimal(str(value))
    return amount if amount.is_finite() and amount >= 0 else None

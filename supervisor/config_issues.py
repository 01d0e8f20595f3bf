"""Words for what pydantic found wrong in a config: one issue for each problem, with the field's path and an order."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from contract.config import (
    Assignment,
    AwsConfig,
    BatchConfig,
    Ec2HostConfig,
    EvaluatorConfig,
    JudgeConfig,
    LocalHostConfig,
)
from contract.rollout_records import Limits
from supervisor.issues import Issue, did_you_mean, few

_RANGE_ERRORS: Final = frozenset(
    {
        "greater_than",
        "greater_than_equal",
        "less_than",
        "less_than_equal",
        "too_short",
        "too_long",
        "string_too_short",
        "string_too_long",
        "finite_number",
        "decimal_max_places",
    }
)
_VALUE_ERRORS: Final = frozenset({"literal_error", "string_pattern_mismatch", "union_tag_invalid"})


def issue_of(error: ErrorDetails, document: dict[str, Any]) -> Issue:
    """The issue for one error in `document`; shows values of simple types only, cut to 60 characters."""
    field = field_path(error["loc"], document)
    rollout_id = _rollout_of(error["loc"], document)
    name = str(error["loc"][-1]) if error["loc"] else "document"
    kind = error["type"]
    if kind == "extra_forbidden":
        known = sorted(_known_fields(error["loc"], document))
        return Issue(
            "unknown_field",
            f"{field!r} is not a field of the config",
            f"Remove it.{did_you_mean(name, known)} Known here: {few(known, limit=20)}.",
            field,
            rollout_id,
        )
    if kind in ("missing", "union_tag_not_found"):
        where = f"{field}.kind" if kind == "union_tag_not_found" else field
        return Issue("missing_field", f"{where!r} is missing", f"Add {where!r}.", where, rollout_id)
    if kind in _RANGE_ERRORS:
        return Issue(
            "out_of_range",
            f"{field!r} is {_shown(error['input'])}: {_sentence(error['msg'])}",
            f"Give {field!r} a value in its range.",
            field,
            rollout_id,
        )
    if kind in _VALUE_ERRORS:
        return Issue(
            "wrong_value",
            f"{field!r} is {_shown(error['input'])}: {_sentence(error['msg'])}",
            _value_hint(error, field),
            field,
            rollout_id,
        )
    value = error["input"]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return Issue(
        "wrong_type",
        f"{field!r} is {_shown(value) if is_number else kind_of(value)}: {_sentence(error['msg'])}",
        f"Give {field!r} a value of the right type.",
        field,
        rollout_id,
    )


_PATTERN_HINTS: Final = {
    r"^[a-z0-9][a-z0-9._-]{0,63}$": "Use lower-case letters, digits, dots, dashes and underscores; start with a letter "
    "or digit; at most 64 characters.",
    r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$": "Use letters, digits, dots, dashes and underscores; start with a letter or "
    "digit; at most 128 characters.",
    r"^\d+\.\d+\.\d+$": "Write three numbers, like 1.0.0.",
    r"^[a-z]{2}(-[a-z]+)+-\d$": "Write an AWS region, like us-east-1.",
}


def _value_hint(error: ErrorDetails, field: str) -> str:
    context = error.get("ctx", {})
    expected = str(context.get("expected") or context.get("expected_tags") or "")
    if not expected:
        pattern = str(context.get("pattern", ""))
        return _PATTERN_HINTS.get(pattern, f"Give {field!r} a value of this form: {pattern}.")
    known = [word.strip(" '\"") for word in expected.replace(" or ", ",").split(",") if word.strip(" '\"")]
    value = error["input"]
    given = value if isinstance(value, str) else str(context.get("tag", ""))
    return f"Use one of {', '.join(known)}.{did_you_mean(given, known)}"


def _sentence(message: str) -> str:
    return message[:1].lower() + message[1:].rstrip(".")


def _shown(value: object) -> str:
    if isinstance(value, str):
        return repr(_cut(value))
    return _cut(str(value)) if isinstance(value, int | float | Decimal) else kind_of(value)


def _cut(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


def kind_of(value: object) -> str:
    """What a JSON value is, in words: `a string`, `an empty list`."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "an empty list" if not value else "a list"
        case dict():
            return "an object"
        case _:
            return "a value"


def field_path(loc: tuple[int | str, ...], document: Any) -> str:
    """A pydantic location as a path into the document, like `rollouts[3].task`; union tags are left out."""
    path = ""
    if loc[-1:] == ("[key]",):
        # pydantic says of a name that it is wrong by one more part.
        loc = loc[:-1]
    holder = document
    for index, part in enumerate(loc):
        is_last = index == len(loc) - 1
        if isinstance(part, int):
            path += f"[{part}]"
            holder = holder[part] if isinstance(holder, list) and part < len(holder) else None
        elif is_last or (isinstance(holder, dict) and part in holder):
            path += f".{part}" if path else part
            holder = holder.get(part) if isinstance(holder, dict) else None
    return path or "document"


def _rollout_of(loc: tuple[int | str, ...], document: dict[str, Any]) -> str | None:
    if len(loc) < 2 or loc[0] != "rollouts" or not isinstance(loc[1], int):
        return None
    entry = document["rollouts"][loc[1]]
    rollout_id = entry.get("rollout_id") if isinstance(entry, dict) else None
    return rollout_id if isinstance(rollout_id, str) and len(rollout_id) <= 64 else None


def _known_fields(loc: tuple[int | str, ...], document: dict[str, Any]) -> set[str]:
    shape: type[BaseModel]
    match loc[0] if len(loc) > 1 else None:
        case "rollouts":
            shape = Assignment
        case "host":
            host = document.get("host")
            is_ec2 = isinstance(host, dict) and host.get("kind") == "ec2"
            shape = Ec2HostConfig if is_ec2 else LocalHostConfig
        case "evaluator":
            shape = EvaluatorConfig
        case "judge":
            shape = JudgeConfig
        case "limits":
            shape = Limits
        case "aws":
            shape = AwsConfig
        case _:
            shape = BatchConfig
    return {info.alias or name for name, info in shape.model_fields.items()}

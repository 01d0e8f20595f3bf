"""Reads a config so that one mistake hides no other: every shape problem is an issue, and what is right stays usable.

A config with mistakes still gives a `Draft`: broken optional fields take their defaults, broken pieces take a
placeholder and are named in `unusable`, and a check that needs such a piece is skipped.
"""

from __future__ import annotations

import copy
import json
import math
import os
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails, from_json

from contract.config import Assignment, BatchConfig, root_of
from supervisor.config_issues import field_path, issue_of, kind_of
from supervisor.issues import Issue

# A batch of 100,000 assignments is about 16 MB; anything larger is not a config.
CONFIG_BYTES_MAX: Final = 64 * 1024 * 1024
# No field takes a number near as long, and Python refuses to read one of thousands of digits.
_DIGITS_MAX: Final = 400
_NAME_A_FILE: Final = "Give --config the path of a JSON file that you may read."

# Stand-ins for pieces that cannot be read; each is always listed in `Draft.unusable`.
_PLACEHOLDERS: Final[dict[str, Any]] = {
    "schema": "autocad-bench.config/1",
    "benchmark": "unreadable",
    "expected_rollouts": 1,
    "max_concurrency": 1,
    "broker_version": "",
    "host": {"kind": "local"},
    "evaluator": {"name": "ezdxf", "version": "0.0.0", "gold_cache": ""},
    "rollouts": [{"rollout_id": "unreadable", "task": "unreadable", "provider": "noop", "model": "unreadable"}],
}


@dataclass(frozen=True, slots=True)
class Draft:
    """A config as far as it can be read.

    `root` is where relative paths start. `unusable` names the fields whose value is a placeholder or a default that the
    operator did not mean: `mode`, `host`, or one field of a piece, like `host.lease_s`.
    `positions[i]` is the index in the file of `config.rollouts[i]`: unreadable entries are left out, but for those of
    which only the rollout_id is wrong; here it is `unreadable-<index>`.
    `unreadable_enabled` counts the entries that are left out and do not say `"enabled": false`.
    """

    root: Path
    config: BatchConfig
    unusable: frozenset[str]
    positions: tuple[int, ...]
    unreadable_enabled: int
    document: dict[str, Any]

    def is_usable(self, field: str) -> bool:
        """False when the field, or the object that it stands in, could not be read."""
        return not any(field == lost or field.startswith(f"{lost}.") for lost in self.unusable)

    def place(self, index: int) -> str:
        """The field path in the file of `config.rollouts[index]`."""
        return f"rollouts[{self.positions[index]}]"


@dataclass(frozen=True, slots=True)
class Reading:
    """The draft and what is wrong with its shape. `is_json` is false when nothing at all could be read."""

    draft: Draft
    is_json: bool
    issues: tuple[Issue, ...]


def read_config(path: Path, *, hint: str = _NAME_A_FILE) -> Reading:
    """Read the config at `path`. Never raises for what stands in the file, or for a missing one.

    `hint` is what to do when there is no file that can be read.
    """
    try:
        content = _content(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        issue = Issue("config_missing", f"cannot read the config {str(path)!r}: {reason}", hint)
        return _nothing(issue, root=root_of(path))
    return parse_config(content, root=root_of(path), source=str(path))


def _content(path: Path) -> bytes:
    # Opening a named pipe would wait for whoever writes into it.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            # Relative paths start from where the config lies, and a pipe lies nowhere.
            raise ValueError("it is not a regular file")
        return stream.read(CONFIG_BYTES_MAX + 1)


def parse_config(content: bytes, *, root: Path, source: str) -> Reading:
    """Check the shape of one config document; `source` is how an issue names it."""
    if len(content) > CONFIG_BYTES_MAX:
        return _not_json(root, source, f"it is larger than {CONFIG_BYTES_MAX} bytes")
    try:
        document = json.loads(content.decode("utf-8-sig"), object_pairs_hook=_object, parse_int=_integer)
        # What this reader cannot take, because of its depth or of half a character, the one below cannot either.
        from_json(_text(document))
    except (ValueError, RecursionError) as error:
        return _not_json(root, source, _json_problem(error))
    if not isinstance(document, dict):
        return _not_json(root, source, f"the document is {kind_of(document)}, not an object")
    return _salvage(document, root=root)


class _Repeating(dict[str, Any]):
    """A JSON object in which the names `twice` stand more than once."""

    twice: tuple[str, ...] = ()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    built = dict(pairs)
    if len(built) == len(pairs):
        return built
    counts = Counter(name for name, _ in pairs)
    repeating = _Repeating(built)
    repeating.twice = tuple(name for name, count in counts.items() if count > 1)
    return repeating


def _repeated(value: Any, place: str) -> Iterator[str]:
    """The paths of all names that stand more than once in an object of `value`."""
    if isinstance(value, dict):
        within = f"{place}." if place else ""
        if isinstance(value, _Repeating):
            yield from (f"{within}{name}" for name in value.twice)
        for name, item in value.items():
            yield from _repeated(item, f"{within}{name}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _repeated(item, f"{place}[{index}]")


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= _DIGITS_MAX else math.inf


def _text(document: Any) -> bytes:
    """The document for pydantic, whatever its numbers are: a number of no use has a field, and so an issue."""
    return json.dumps(document, ensure_ascii=False).encode()


def _json_problem(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at line {error.lineno}, column {error.colno}"
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is not UTF-8"
    if isinstance(error, UnicodeEncodeError):
        return "a string holds one half of a surrogate pair"
    return "it is nested too deeply"


def _not_json(root: Path, source: str, reason: str) -> Reading:
    issue = Issue(
        "config_not_json",
        f"{source!r} is not a JSON config: {reason}",
        "Write one JSON object in UTF-8, without comments or trailing commas.",
    )
    return _nothing(issue, root=root)


def _nothing(issue: Issue, *, root: Path) -> Reading:
    draft = _salvage({}, root=root).draft
    return Reading(replace(draft, unusable=frozenset(BatchConfig.model_fields)), is_json=False, issues=(issue,))


def _salvage(document: dict[str, Any], *, root: Path) -> Reading:
    issues = [
        Issue(
            "duplicate_key",
            f"{place!r} stands twice in its object",
            "Keep one of the two; the last one would silently win.",
            field=place,
        )
        for place in _repeated(document, "")
    ]
    raw = copy.deepcopy(document)
    errors = _errors(raw)
    issues += [issue_of(error, document) for error in errors]
    unusable: set[str] = set()
    unreadable: set[int] = set()
    for error in errors:
        _take_out(raw, error, unusable=unusable, unreadable=unreadable)
    positions = _drop_entries(raw, unreadable, unusable)
    _fill_in(raw, unusable)
    # What is left after one pass is right, or its top-level field is given up.
    for error in _errors(raw):
        top = str(error["loc"][0]) if error["loc"] else "schema"
        unusable.add(top)
        raw.pop(top, None)
    _fill_in(raw, unusable)
    config = BatchConfig.model_validate_json(_text(raw), strict=True)
    if "rollouts" in unusable:
        positions = (0,)
    entries = document.get("rollouts")
    lost = [entries[index] for index in unreadable] if isinstance(entries, list) else []
    draft = Draft(
        root=root,
        config=config,
        unusable=frozenset(unusable),
        positions=positions,
        unreadable_enabled=sum(not (isinstance(entry, dict) and entry.get("enabled") is False) for entry in lost),
        document=document,
    )
    return Reading(draft, is_json=True, issues=tuple(issues))


def _errors(raw: dict[str, Any]) -> list[ErrorDetails]:
    try:
        # Strict: "3" is not 3 in a file that a person wrote.
        BatchConfig.model_validate_json(_text(raw), strict=True)
    except ValidationError as error:
        return error.errors(include_url=False)
    return []


def _take_out(raw: dict[str, Any], error: ErrorDetails, *, unusable: set[str], unreadable: set[int]) -> None:
    loc = error["loc"]
    top = str(loc[0]) if loc else "schema"
    if error["type"] == "extra_forbidden":
        # Without the unknown field the rest of its object is as good as any.
        _delete(raw, loc)
    elif top == "rollouts" and len(loc) >= 2 and isinstance(loc[1], int):
        if loc[2:] == ("rollout_id",):
            # What else is wrong with the entry is said all the same.
            raw["rollouts"][loc[1]]["rollout_id"] = f"unreadable-{loc[1]}"
        elif error["type"] == "missing" or len(loc) == 2 or not _is_optional(str(loc[2])):
            unreadable.add(loc[1])
        else:
            _delete(raw, loc[:3])
    elif top in _PIECES and len(loc) >= 2:
        # Only this field is lost; when its object cannot do without, the next pass gives up the object.
        field = field_path(loc, raw)
        _delete(raw, loc)
        unusable.add(field)
    else:
        unusable.add(top)


_PIECES: Final = frozenset({"host", "evaluator", "judge", "limits", "endpoints"})


def _is_optional(name: str) -> bool:
    info = Assignment.model_fields.get(name)
    return info is not None and not info.is_required()


def _delete(raw: Any, loc: tuple[int | str, ...]) -> None:
    holder = raw
    for part in loc[:-1]:
        is_index = isinstance(holder, list) and isinstance(part, int) and part < len(holder)
        # Any other part is the tag of a union, which has no place in the document.
        if is_index or (isinstance(holder, dict) and part in holder):
            holder = holder[part]
    if isinstance(holder, dict):
        holder.pop(loc[-1], None)


def _drop_entries(raw: dict[str, Any], unreadable: set[int], unusable: set[str]) -> tuple[int, ...]:
    entries = raw.get("rollouts")
    if not isinstance(entries, list):
        unusable.add("rollouts")
        return ()
    kept = tuple(index for index in range(len(entries)) if index not in unreadable)
    raw["rollouts"] = [entries[index] for index in kept]
    if not kept:
        unusable.add("rollouts")
    return kept


def _fill_in(raw: dict[str, Any], unusable: set[str]) -> None:
    for field in unusable:
        raw.pop(field, None)
    for name, value in _PLACEHOLDERS.items():
        if name not in raw:
            unusable.add(name)
            raw[name] = copy.deepcopy(value)

"""TEXT, MTEXT and ATTRIB: plain text, anchor, and the box that the text fills.

The box is an estimate by one font; it is comparable only with boxes that this evaluator made.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from ezdxf.math import Matrix44, Vec3
from ezdxf.tools.text import plain_mtext

from broker.evaluator.curves import Geom, degrees_in_turn, map_direction, map_point, xyz
from broker.evaluator.fonts import line_width
from broker.evaluator.settings import LINE_SPACING

_SIGNS: Final = {"c": "⌀", "d": "°", "p": "±", "%": "%"}
_CODE: Final = re.compile(r"%%(?:(\d{3})|(.))", re.DOTALL)


class Text(NamedTuple):
    """A text record, the corners of its box, and its lines as they are drawn."""

    geom: Geom
    corners: list[tuple[float, float, float]]
    lines: tuple[str, ...]
    # Distance of two base lines, in drawing units.
    spacing: float


def plain_line(raw: str) -> str:
    """One-line text without its codes: `%%c %%d %%p` become signs, toggles for lines above and below go."""

    def shown(match: re.Match[str]) -> str:
        number, letter = match.groups()
        if number:
            code = int(number)
            return chr(code) if 32 <= code < 0xD800 else ""
        return _SIGNS.get(letter.lower(), "" if letter.lower() in "kou" else match.group(0))

    return _CODE.sub(shown, raw).replace("^J", "\n").replace("^I", " ")


def plain_paragraphs(raw: str) -> list[str]:
    """The lines of an MTEXT without its codes."""
    marked = re.sub(r"%%([cdp])", lambda match: _SIGNS[match.group(1).lower()], raw, flags=re.IGNORECASE)
    return [line for part in plain_mtext(marked, split=True) for line in str(part).split("\n")]


def text_of(entity: Any, frame: Matrix44 | None) -> Text:
    """TEXT or ATTRIB; `frame` maps its own plane to the world."""
    dxf = entity.dxf
    lines = plain_line(str(dxf.get("text", ""))).split("\n")
    height = float(dxf.get("height", 1.0))
    width_factor = float(dxf.get("width", 1.0))
    width = max(line_width(line) for line in lines) * height * width_factor
    halign, valign = int(dxf.get("halign", 0)), int(dxf.get("valign", 0))
    insert = Vec3(dxf.get("insert", (0, 0, 0)))
    rotation = math.radians(float(dxf.get("rotation", 0.0)))
    anchor = insert if halign == 0 and valign == 0 else Vec3(dxf.get("align_point", insert))
    along = {0: width / 2, 2: -width / 2}.get(halign, 0.0)
    up = 0.0 if halign == 4 else {2: 0.0, 3: -height / 2}.get(valign, height / 2)
    if halign in (3, 5) and dxf.hasattr("align_point"):
        # Fitted between two points: these decide where it is and how it runs.
        second = Vec3(dxf.align_point)
        anchor, along = insert, insert.distance(second) / 2
        rotation = math.atan2(second.y - insert.y, second.x - insert.x)
        width = insert.distance(second)
    return _placed(
        frame,
        source=entity.dxftype(),
        raw=str(dxf.get("text", "")),
        lines=lines,
        anchor=anchor,
        rotation=rotation,
        offset=(along, up),
        size=(width, height),
        height=height,
        width_factor=width_factor,
        style=str(dxf.get("style", "Standard")),
        spacing=height * LINE_SPACING,
    )


def mtext_of(entity: Any, frame: Matrix44 | None) -> Text:
    """MTEXT; `frame` maps the world of its block to the drawing's."""
    dxf = entity.dxf
    height = float(dxf.get("char_height", 1.0))
    spacing = height * LINE_SPACING * float(dxf.get("line_spacing_factor", 1.0))
    lines = _wrapped(plain_paragraphs(str(entity.text)), float(dxf.get("width", 0.0)) / height if height else 0.0)
    width = max((line_width(line) for line in lines), default=0.0) * height
    tall = height + spacing * (len(lines) - 1)
    row, column = divmod(int(dxf.get("attachment_point", 1)) - 1, 3)
    direction = Vec3(dxf.text_direction) if dxf.hasattr("text_direction") else None
    rotation = math.radians(float(dxf.get("rotation", 0.0)))
    if direction is not None and direction.magnitude:
        rotation = math.atan2(direction.y, direction.x)
    return _placed(
        frame,
        source="MTEXT",
        raw=str(entity.text),
        lines=lines,
        anchor=Vec3(dxf.get("insert", (0, 0, 0))),
        rotation=rotation,
        offset=((0.5 - 0.5 * column) * width, (0.5 * min(row, 2) - 0.5) * tall),
        size=(width, tall),
        height=height,
        width_factor=1.0,
        style=str(dxf.get("style", "Standard")),
        spacing=spacing,
    )


def _wrapped(lines: Sequence[str], limit: float) -> list[str]:
    """Break lines that are wider than `limit` text heights at their spaces; 0 is no limit."""
    if limit <= 0:
        return list(lines) or [""]
    wrapped: list[str] = []
    for line in lines:
        current = ""
        for word in line.split(" "):
            longer = f"{current} {word}" if current else word
            if current and line_width(longer) > limit:
                wrapped.append(current)
                current = word
            else:
                current = longer
        wrapped.append(current)
    return wrapped or [""]


def _placed(
    frame: Matrix44 | None,
    *,
    source: str,
    raw: str,
    lines: Sequence[str],
    anchor: Vec3,
    rotation: float,
    offset: tuple[float, float],
    size: tuple[float, float],
    height: float,
    width_factor: float,
    style: str,
    spacing: float,
) -> Text:
    along, up = Vec3.from_angle(rotation), Vec3.from_angle(rotation + math.pi / 2)
    center = anchor + along * offset[0] + up * offset[1]
    halves = [(x * size[0] / 2, y * size[1] / 2) for x, y in ((-1, -1), (1, -1), (1, 1), (-1, 1))]
    world_along, world_up = map_direction(frame, along), map_direction(frame, up)
    scale = world_up.magnitude
    plain = raw_lines(lines)
    geom = {
        "text": plain,
        "raw": raw,
        "anchor": xyz(map_point(frame, anchor)),
        "center": xyz(map_point(frame, center)),
        "height": height * scale,
        "rotation_deg": degrees_in_turn(math.degrees(math.atan2(world_along.y, world_along.x))),
        "width_factor": width_factor * (world_along.magnitude / scale if scale else 1.0),
        "style": style,
        "source": source,
    }
    corners = [xyz(map_point(frame, center + along * x + up * y)) for x, y in halves]
    return Text(geom, corners, tuple(lines), spacing * scale)


def raw_lines(lines: Sequence[str]) -> str:
    """Lines as one text."""
    return "\n".join(lines)

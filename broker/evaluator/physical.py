"""The box around physical bodies only, each of them measured alone (scoring contract, 3.5)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from broker.evaluator.bodies import Mesh, places
from broker.evaluator.boxes import box_of_boxes, box_of_points, sized
from broker.evaluator.flatten import Flat

# Corners of single faces that are this share of the drawing's diagonal apart are one.
_TOUCH_SHARE: Final = 1e-6


def physical_extents(flats: Sequence[Flat], diagonal: float) -> dict[str, Any] | None:
    """Bodies of visible model space; None when there is none. `diagonal` is that of the drawing.

    Faces that stand alone in the file count as one mesh where they touch, named after the first of them.
    """
    flats = [flat for flat in flats if flat.record["space"] == "model" and flat.record["is_visible"]]
    bodies = [flat for flat in flats if flat.record["kind"] in ("solid", "mesh")]
    faces = [flat for flat in bodies if flat.record["dxf_type"] == "3DFACE" and flat.shape.mesh is not None]
    alone = [flat for flat in bodies if flat.record["dxf_type"] != "3DFACE"]
    measured = [_body(flat, flat.shape.mesh, flat.record["geom"]) for flat in alone if _is_measured(flat)]
    for members, mesh in _joined(faces, _TOUCH_SHARE * diagonal):
        measured.append(_body(members[0], mesh, mesh.geom()))
    unsupported = sorted(flat.record["id"] for flat in alone if not flat.shape.is_measured)
    if not measured and not unsupported:
        return None
    measured.sort(key=lambda body: str(body["entity_id"]))
    nothing = {"min": None, "max": None, "size": None}
    box = sized(box_of_boxes({"min": body["min"], "max": body["max"]} for body in measured))
    return {**nothing, **(box or {}), "bodies": measured, "unsupported": unsupported}


def _is_measured(flat: Flat) -> bool:
    mesh = flat.shape.mesh
    return flat.shape.is_measured and mesh is not None and bool(mesh.faces)


def _body(flat: Flat, mesh: Mesh | None, geom: dict[str, Any]) -> dict[str, Any]:
    assert mesh is not None
    box = box_of_points(mesh.corners())
    assert box is not None
    return {
        "entity_id": flat.record["id"],
        "kind": flat.record["kind"],
        "layer": flat.record["layer"],
        "min": box["min"],
        "max": box["max"],
        "volume": geom["volume"],
        "area": geom["area"],
        "centroid": geom["centroid"],
        "method": "vertices",
    }


def _joined(faces: Sequence[Flat], tolerance: float) -> Iterator[tuple[list[Flat], Mesh]]:
    """Faces that share corners, directly or through others, as one mesh each."""
    meshes = [flat.shape.mesh for flat in faces]
    used = [(flat, mesh) for flat, mesh in zip(faces, meshes, strict=True) if mesh is not None and mesh.faces]
    if not used:
        return
    points = [point for _, mesh in used for point in mesh.points]
    keys = places(np.array([point.xyz for point in points], dtype=np.float64), tolerance).tolist()
    starts = np.cumsum([0, *(len(mesh.points) for _, mesh in used)]).tolist()
    root = list(range(len(used)))

    def find(number: int) -> int:
        while root[number] != number:
            root[number] = root[root[number]]
            number = root[number]
        return number

    owner: dict[int, int] = {}
    for number in range(len(used)):
        for key in keys[starts[number] : starts[number + 1]]:
            one, other = find(owner.setdefault(key, number)), find(number)
            root[max(one, other)] = min(one, other)
    members: dict[int, list[int]] = {}
    for number in range(len(used)):
        members.setdefault(find(number), []).append(number)
    for numbers in members.values():
        corners = [point for number in numbers for point in used[number][1].points]
        ends = np.cumsum([0, *(len(used[number][1].points) for number in numbers)]).tolist()
        loops = [
            [begin + index for index in face]
            for begin, number in zip(ends, numbers, strict=False)
            for face in used[number][1].faces
        ]
        yield [used[number][0] for number in numbers], Mesh(corners, loops, size=tolerance)

"""Face sets: MESH, 3DFACE, polyface and polygon meshes, measured from their vertices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from ezdxf.math import Matrix44, Vec3
from numpy.typing import NDArray

from broker.evaluator.curves import Geom, map_point, xyz

Faces = Sequence[Sequence[int]]


class Mesh(NamedTuple):
    """Corner points in world coordinates, and faces as lists of their indices."""

    points: list[Vec3]
    faces: list[list[int]]

    def geom(self) -> Geom:
        """Area always, volume and centroid of the body only when the faces close it."""
        array = np.array([xyz(point) for point in self.points], dtype=np.float64).reshape(-1, 3)
        keys = _merged(array)
        is_closed = _is_closed(keys, self.faces)
        triangles = array[[(f[0], f[i], f[i + 1]) for f in self.faces for i in range(1, len(f) - 1)]].reshape(-1, 3, 3)
        a, b, c = triangles[:, 0], triangles[:, 1], triangles[:, 2]
        area = float(np.linalg.norm(np.cross(b - a, c - a), axis=1).sum()) / 2
        volume = centroid = None
        if is_closed and len(triangles):
            # Relative to one corner, because far from the origin the products would lose what they measure.
            origin = array[0]
            sixths = np.einsum("ij,ij->i", a - origin, np.cross(b - origin, c - origin))
            total = float(sixths.sum())
            volume = abs(total) / 6
            if total:
                middle = origin + ((a + b + c - 3 * origin) * sixths[:, None]).sum(axis=0) / (4 * total)
                centroid = (float(middle[0]) + 0.0, float(middle[1]) + 0.0, float(middle[2]) + 0.0)
        return {
            "vertex_count": len(self.points),
            "face_count": len(self.faces),
            "is_closed": is_closed,
            "volume": volume,
            "area": area,
            "centroid": centroid,
        }

    def edges(self) -> list[tuple[Vec3, Vec3]]:
        """Every edge once, in a fixed order."""
        pairs = {tuple(sorted((f[i - 1], f[i]))) for f in self.faces for i in range(len(f))}
        return [(self.points[i], self.points[j]) for i, j in sorted(pairs)]


def mesh_of(entity: Any, frame: Matrix44 | None) -> Mesh:
    """The faces of one entity; faces that name missing corners are left out."""
    match entity.dxftype():
        case "MESH":
            points = [Vec3(vertex) for vertex in entity.vertices]
            faces = [[int(index) for index in face] for face in entity.faces]
        case "3DFACE":
            points = [Vec3(entity.dxf.get(f"vtx{i}")) for i in range(4) if entity.dxf.hasattr(f"vtx{i}")]
            # A triangle repeats its last corner.
            points = [point for i, point in enumerate(points) if i == 0 or not point.isclose(points[i - 1])]
            faces = [list(range(len(points)))]
        case _:
            points, faces = _polyline_faces(entity)
    count = len(points)
    kept = [face for face in faces if len(face) > 2 and all(0 <= index < count for index in face)]
    return Mesh([map_point(frame, point) for point in points], kept)


def _polyline_faces(entity: Any) -> tuple[list[Vec3], list[list[int]]]:
    if entity.is_poly_face_mesh:
        points = [Vec3(v.dxf.location) for v in entity.vertices if v.is_poly_face_mesh_vertex]
        records = [v for v in entity.vertices if v.is_face_record]
        # Indices count from 1; a negative one marks an invisible edge.
        faces = [[abs(i) - 1 for i in (v.dxf.get(f"vtx{k}", 0) for k in range(4)) if i] for v in records]
        return points, faces
    rows, columns = int(entity.dxf.get("m_count", 0)), int(entity.dxf.get("n_count", 0))
    points = [Vec3(v.dxf.location) for v in entity.vertices][: rows * columns]
    if len(points) < rows * columns:
        return points, []
    last_row = rows if entity.is_m_closed else rows - 1
    last_column = columns if entity.is_n_closed else columns - 1
    return points, [
        [
            r * columns + c,
            r * columns + (c + 1) % columns,
            (r + 1) % rows * columns + (c + 1) % columns,
            (r + 1) % rows * columns + c,
        ]
        for r in range(last_row)
        for c in range(last_column)
    ]


def _merged(array: NDArray[np.float64]) -> list[int]:
    """A number for each corner; corners at one place have the same."""
    if not len(array):
        return []
    size = float(np.linalg.norm(array.max(axis=0) - array.min(axis=0))) or 1.0
    rounded = np.round((array - array.min(axis=0)) / (size * 1e-9))
    return [int(key) for key in np.unique(rounded, axis=0, return_inverse=True)[1].reshape(-1)]


def _is_closed(keys: Sequence[int], faces: Faces) -> bool:
    """Every edge is used exactly once in each direction: no hole, and all faces turned alike."""
    edges: set[tuple[int, int]] = set()
    for face in faces:
        for i in range(len(face)):
            edge = (keys[face[i - 1]], keys[face[i]])
            if edge[0] == edge[1]:
                continue
            if edge in edges:
                return False
            edges.add(edge)
    return bool(edges) and all((b, a) in edges for a, b in edges)

"""Face sets: MESH, 3DFACE, polyface and polygon meshes, and flat-faced solids, measured from their vertices."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
from ezdxf.math import Matrix44, Vec3
from numpy.typing import NDArray

from broker.evaluator.curves import Geom, map_point, xyz

Faces = Sequence[Sequence[int]]
Array = NDArray[np.float64]

# Normals of a face's triangles that differ by less than this (the sine of the angle) belong to one flat face.
_FLAT: Final = 1e-6
# Corners this share of the whole size apart are one.
_MERGE_SHARE: Final = 1e-9


class Mesh(NamedTuple):
    """Corner points in world coordinates, and faces as lists of their indices.

    A face with holes is several loops: `owner` then says which face each of `faces` belongs to, and every hole runs
    the other way round. `size` is what corners are merged by when it is not the mesh's own.
    """

    points: list[Vec3]
    faces: list[list[int]]
    owner: list[int] | None = None
    size: float | None = None

    def geom(self) -> Geom:
        """Area always, volume and centroid of the body only when the faces close it."""
        array = np.array([xyz(point) for point in self.points], dtype=np.float64).reshape(-1, 3)
        closed = _closed(_merged(array, self.size), self.faces, may_turn=self.owner is None)
        faces = self.faces if closed is None else closed
        owner = self.owner if self.owner is not None else list(range(len(faces)))
        which = [(k, f[0], f[i], f[i + 1]) for k, f in zip(owner, faces, strict=True) for i in range(1, len(f) - 1)]
        triangles = np.array(which, dtype=np.int64).reshape(-1, 4)
        a, b, c = (array[triangles[:, corner]] for corner in (1, 2, 3))
        volume = centroid = None
        if closed is not None and len(triangles):
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
            "face_count": len(set(owner)),
            "is_closed": closed is not None,
            "volume": volume,
            "area": _area(np.cross(b - a, c - a), triangles[:, 0]),
            "centroid": centroid,
        }

    def corners(self) -> list[tuple[float, float, float]]:
        """The points that any face uses: others are no part of the body."""
        return [xyz(self.points[i]) for i in sorted({i for face in self.faces for i in face})]

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


def _area(normals: Array, owner: NDArray[np.int64]) -> float:
    """Area of all faces from the normals of their triangles, each twice its triangle's area long."""
    if not len(normals):
        return 0.0
    owner = np.unique(owner, return_inverse=True)[1].reshape(-1)
    whole = np.zeros((int(owner.max()) + 1, 3))
    np.add.at(whole, owner, normals)
    lengths, whole_lengths = np.linalg.norm(normals, axis=1), np.linalg.norm(whole, axis=1)
    # In a flat face triangles outside a hollow corner or in a hole count against the others; a bent face has none.
    aside = np.linalg.norm(np.cross(normals, whole[owner]), axis=1)
    is_bent = np.zeros(len(whole), dtype=bool)
    is_bent[owner[aside > _FLAT * lengths * whole_lengths[owner]]] = True
    return float(whole_lengths[~is_bent].sum() + lengths[is_bent[owner]].sum()) / 2


def _merged(array: Array, size: float | None) -> list[int]:
    """A number for each corner; corners at one place have the same."""
    if not len(array):
        return []
    if size is None:
        size = float(np.linalg.norm(array.max(axis=0) - array.min(axis=0))) * _MERGE_SHARE or 1.0
    return [int(label) for label in places(array, size)]


def places(array: Array, tolerance: float) -> NDArray[np.int64]:
    """A number for each point (n, 3); points that are no further apart than `tolerance` in x, y and z share it."""
    columns = []
    for values in array.T:
        order = np.argsort(values, kind="stable")
        label = np.empty(len(values), dtype=np.int64)
        label[order] = np.concatenate([[0], np.cumsum(np.diff(values[order]) > tolerance)])
        columns.append(label)
    result: NDArray[np.int64] = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)[1].reshape(-1)
    return result


def _closed(keys: Sequence[int], faces: list[list[int]], *, may_turn: bool) -> list[list[int]] | None:
    """The faces, all turned alike, when they close a body: every edge belongs to two of them, once each way.

    None otherwise. Faces that were drawn one by one are turned as needed (`may_turn`).
    """
    sides: dict[tuple[int, int], list[tuple[int, bool]]] = {}
    for number, face in enumerate(faces):
        for a, b in pairwise([keys[face[-1]], *(keys[i] for i in face)]):
            if a != b:
                sides.setdefault((min(a, b), max(a, b)), []).append((number, a < b))
    if not sides or any(len(users) != 2 or users[0][0] == users[1][0] for users in sides.values()):
        # A face may meet itself along a bridge to its hole: then only the directions count.
        return faces if sides and all(_is_balanced(users) for users in sides.values()) else None
    neighbours: list[list[tuple[int, bool]]] = [[] for _ in faces]
    for (one, one_way), (other, other_way) in sides.values():
        neighbours[one].append((other, one_way == other_way))
        neighbours[other].append((one, one_way == other_way))
    if not any(is_against for near in neighbours for _, is_against in near):
        return faces
    turned = _turned_alike(neighbours) if may_turn else None
    if turned is None:
        return None
    return [face[::-1] if turn else face for face, turn in zip(faces, turned, strict=True)]


def _is_balanced(users: list[tuple[int, bool]]) -> bool:
    return len(users) == 2 and users[0][1] != users[1][1]


def _turned_alike(neighbours: Sequence[Sequence[tuple[int, bool]]]) -> list[bool] | None:
    """Which faces to turn so that no two neighbours are turned against each other; None when it cannot be done."""
    turned: list[bool | None] = [None] * len(neighbours)
    for start in range(len(neighbours)):
        if turned[start] is not None:
            continue
        turned[start] = False
        waiting = [start]
        while waiting:
            face = waiting.pop()
            for near, is_against in neighbours[face]:
                wanted = bool(turned[face]) != is_against
                if turned[near] is None:
                    turned[near] = wanted
                    waiting.append(near)
                elif turned[near] != wanted:
                    return None
    return [bool(turn) for turn in turned]

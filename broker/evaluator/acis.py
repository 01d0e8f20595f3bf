"""Flat-faced ACIS bodies: 3DSOLID, BODY, REGION and planar SURFACE, measured from their vertices.

A curved face or edge needs a modeler, and so does a body whose data are not understood whole: these are not measured
at all. What is returned is exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ezdxf.acis.entities import NONE_REF, Body, SabLoader, SatLoader
from ezdxf.math import Matrix44, Vec3

from broker.evaluator.bodies import Mesh
from broker.evaluator.curves import map_point

_SCALE_INDEX = 12


class _NotExact(Exception):
    """The body has something that cannot be measured without a modeler."""


def polyhedron_of(entity: Any, frame: Matrix44 | None) -> Mesh | None:
    """The body's faces as loops of corner points; None when it has other than flat faces with straight edges."""
    try:
        return _mesh(entity, frame)
    except (MemoryError, RecursionError):
        raise
    except Exception:  # noqa: BLE001 - data that the reader does not understand are as unmeasured as a curved face
        return None


def _mesh(entity: Any, frame: Matrix44 | None) -> Mesh | None:
    data = entity.sab if entity.has_binary_data else entity.sat
    if not data:
        return None
    loader: Any = SabLoader(data) if entity.has_binary_data else SatLoader(data)
    _demand_unscaled(loader)
    loader.load_entities()
    points: list[Vec3] = []
    loops: list[list[int]] = []
    owner: list[int] = []
    faces = 0
    for body in loader.bodies():
        move = None if body.transform.is_none else body.transform.matrix
        for face in _faces(body):
            for loop in _loops(face):
                corners = loop if move is None else [move.transform(point) for point in loop]
                loops.append(list(range(len(points), len(points) + len(corners))))
                owner.append(faces)
                points += [map_point(frame, point) for point in corners]
            faces += 1
    return Mesh(points, loops, owner) if loops else None


def _demand_unscaled(loader: Any) -> None:
    """A scale of its own beside the matrix is read in two ways by two programs; such a body is left to a modeler."""
    for record in loader.records:
        if record.name == "transform":
            first = record.data[0]
            values = list(record.data) if isinstance(first, str) else str(first.value).split(" ")
            if abs(float(values[_SCALE_INDEX]) - 1.0) > 1e-9:
                raise _NotExact


def _faces(body: Body) -> Iterator[Any]:
    if not body.wire.is_none:
        raise _NotExact
    for lump in body.lumps():
        for shell in lump.shells():
            if not shell.subshell.is_none or not shell.wire.is_none:
                raise _NotExact
            yield from shell.faces()


def _loops(face: Any) -> Iterator[list[Vec3]]:
    """Corner points of each boundary, outer ones counter-clockwise seen from outside the body."""
    if face.surface.type != "plane-surface":
        raise _NotExact
    loops = face.loops()
    if not loops:
        raise _NotExact
    for loop in loops:
        coedges = loop.coedges()
        if len(coedges) < 3 or coedges[-1].next_coedge is not coedges[0]:
            raise _NotExact
        if any(coedge.edge is NONE_REF or coedge.edge.curve.type != "straight-curve" for coedge in coedges):
            raise _NotExact
        yield [
            Vec3((coedge.edge.end_vertex if coedge.sense else coedge.edge.start_vertex).point.location)
            for coedge in coedges
        ]

"""Bodies in space: measured exactly from faces, meshes and flat-faced ACIS data, or said to be unmeasured."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Sequence
from typing import Any

import ezdxf
import numpy as np
import pytest
from ezdxf.acis import api
from ezdxf.acis.entities import Body, Lump, Shell
from ezdxf.acis.mesh import PolyhedronFaceBuilder
from ezdxf.math import Vec3
from ezdxf.render import MeshBuilder
from ezdxf.render.forms import cube
from PIL import Image

from broker.evaluator.bodies import Mesh
from broker.evaluator.export import Facts, export_metadata
from broker.evaluator.render import render_flats
from contract.metadata import Metadata, PhysicalExtents

Build = Callable[[Any, Any], None]


def drawn(build: Build, *, version: str = "R2010") -> bytes:
    document = ezdxf.new(version)
    build(document, document.modelspace())
    stream = io.StringIO()
    document.write(stream)
    return stream.getvalue().encode()


def exported(build: Build, *, version: str = "R2010") -> Metadata:
    found = export_metadata(drawn(build, version=version), None)
    assert "ok" == found.status
    assert 4 == found.schema_version
    return found


def physical(build: Build, **how: Any) -> PhysicalExtents:
    found = exported(build, **how).physical_extents_3d
    assert found is not None
    return found


def block(low: Sequence[float] = (0, 0, 0), size: Sequence[float] = (10, 20, 30)) -> MeshBuilder:
    form = cube(center=False)
    form.scale(*size)
    form.translate(*low)
    return form


def add_solid(layout: Any, body: Body) -> Any:
    solid = layout.add_3dsolid()
    api.export_dxf(solid, [body])
    return solid


def pierced() -> Body:
    """A block of 10 by 10 by 4 with a square hole of 4 by 4 through it: two faces with a hole each."""
    mesh = MeshBuilder()
    outer = [(0, 0), (10, 0), (10, 10), (0, 10)]
    inner = [(3, 3), (7, 3), (7, 7), (3, 7)]
    mesh.vertices = [Vec3(x, y, z) for ring in (outer, inner) for z in (0, 4) for x, y in ring]
    turn = [(i, (i + 1) % 4) for i in range(4)]
    mesh.faces = [[i, j, 4 + j, 4 + i] for i, j in turn] + [[8 + j, 8 + i, 12 + i, 12 + j] for i, j in turn]
    mesh.faces += [[4, 5, 6, 7], [3, 2, 1, 0], [15, 14, 13, 12], [8, 9, 10, 11]]
    faces = PolyhedronFaceBuilder(mesh).acis_faces()
    for cap, hole in ((8, 10), (9, 11)):
        faces[cap].append_loop(faces[hole].loop)
    body, lump, shell = Body(), Lump(), Shell()
    for face in faces[:10]:
        face.double_sided = False
        shell.append_face(face)
    lump.append_shell(shell)
    body.append_lump(lump)
    return body


@pytest.mark.parametrize("version", ["R2000", "R2010", "R2013", "R2018"])
def test_a_flat_faced_solid_is_exact(version: str) -> None:
    """As text and as binary data, wherever its own transformation puts it."""
    found = physical(lambda _, msp: add_solid(msp, api.body_from_mesh(block((100, 0, 0)))) and None, version=version)

    (body,) = found.bodies
    assert ((100.0, 0.0, 0.0), (110.0, 20.0, 30.0)) == (body.min, body.max)
    assert (6000.0, 2200.0) == pytest.approx((body.volume, body.area))
    assert (105.0, 10.0, 15.0) == pytest.approx(body.centroid)
    assert [] == found.unsupported


def test_a_hole_through_a_solid_is_taken_out() -> None:
    """Also from its caps, which are faces with two boundaries."""
    (body,) = physical(lambda _, msp: add_solid(msp, pierced()) and None).bodies

    assert 4 * (100 - 16) == pytest.approx(body.volume)
    assert 2 * (100 - 16) + 4 * (40 + 16) == pytest.approx(body.area)


def test_a_solid_in_a_block_is_measured_where_it_is_seen() -> None:
    """Moved, scaled and mirrored with its reference."""

    def build(document: Any, msp: Any) -> None:
        add_solid(document.blocks.new("PART"), api.body_from_mesh(block()))
        msp.add_blockref("PART", (100, 0), dxfattribs={"xscale": -2.0})

    (body,) = physical(build).bodies

    assert ((80.0, 0.0, 0.0), (100.0, 20.0, 30.0)) == (body.min, body.max)
    assert 12_000.0 == pytest.approx(body.volume)


@pytest.mark.parametrize(("known", "other"), [("plane-surface", "cone-surface"), ("straight-curve", "ellipse-curve")])
def test_a_curved_solid_is_unmeasured_and_said_so(known: str, other: str) -> None:
    """Half a measure would be wrong: no box, no volume, a warning, and an entry in the list."""

    def build(_: Any, msp: Any) -> None:
        solid = add_solid(msp, api.body_from_mesh(block()))
        solid.sat = [row.replace(known, other, 1) for row in solid.sat]

    facts = exported(build)

    (solid,) = facts.entities
    assert facts.physical_extents_3d is not None
    assert [solid.id] == facts.physical_extents_3d.unsupported
    assert (None, []) == (facts.physical_extents_3d.min, facts.physical_extents_3d.bodies)
    assert "unsupported_body" in {warning.code for warning in facts.warnings}
    assert "solid" == solid.kind
    assert ("unsupported", None) == (solid.geom.method, solid.geom.volume)


@pytest.mark.parametrize("damage", ["scaled", "cut", "nonsense"])
def test_data_that_are_not_understood_are_unmeasured(damage: str) -> None:
    """Never a crash, never a guess."""

    def build(_: Any, msp: Any) -> None:
        solid = add_solid(msp, api.body_from_mesh(block((5, 5, 5))))
        rows = list(solid.sat)
        match damage:
            case "scaled":
                solid.sat = [row.replace(" 1 no_rotate", " 2 no_rotate") for row in rows]
                assert rows != list(solid.sat)
            case "cut":
                solid.sat = rows[: len(rows) // 2]
            case _:
                solid.sat = ["400 0 1 0", "nonsense #"]

    assert 1 == len(physical(build).unsupported)


def test_single_faces_are_one_body_where_they_touch() -> None:
    """In whatever order and turned whichever way they were drawn."""

    def build(_: Any, msp: Any) -> None:
        chance = random.Random(3)
        for form in (block(), block((100, 0, 0))):
            for face in form.faces_as_vertices():
                corners = list(face)
                msp.add_3dface(corners[::-1] if chance.random() < 0.5 else corners)
        msp.add_3dface([(500, 0, 0), (510, 0, 0), (510, 10, 0)])

    found = physical(build)

    assert [6000.0, 6000.0, None] == [body.volume for body in found.bodies]
    assert {"mesh"} == {body.kind for body in found.bodies}
    assert ((0.0, 0.0, 0.0), (510.0, 20.0, 30.0)) == (found.min, found.max)


def test_lines_texts_and_hidden_bodies_are_no_bodies() -> None:
    """Only what is visible in model space and has substance."""

    def build(document: Any, msp: Any) -> None:
        document.layers.add("OFF").off()
        msp.add_line((0, 0, 0), (999, 999, 999))
        msp.add_text("far", height=5, dxfattribs={"insert": (5_000, 0)})
        block().render_mesh(msp, dxfattribs={"layer": "OFF"})
        block().render_mesh(document.layout("Layout1"))

    assert None is exported(build).physical_extents_3d


def test_a_point_that_no_face_uses_is_no_part_of_a_body() -> None:
    """It would let a small body have a large box."""

    def build(_: Any, msp: Any) -> None:
        form = block()
        form.vertices.append(Vec3(1_000, 1_000, 1_000))
        form.render_mesh(msp)

    assert (10.0, 20.0, 30.0) == physical(build).max


def test_a_smoothed_mesh_is_unmeasured() -> None:
    """Its surface is not that of its faces."""

    def build(_: Any, msp: Any) -> None:
        block().render_mesh(msp).dxf.subdivision_levels = 2

    found = exported(build)

    assert found.physical_extents_3d is not None
    assert [found.entities[0].id] == found.physical_extents_3d.unsupported


def test_a_hollow_corner_of_a_flat_face_is_not_counted() -> None:
    """A fan of triangles overlaps itself there."""
    corners = [(0, 0), (4, 0), (4, 4), (3, 4), (3, 1), (0, 1)]

    geom = Mesh([Vec3(x, y, 0) for x, y in corners], [list(range(6))]).geom()

    assert (7.0, None) == (pytest.approx(geom["area"]), geom["volume"])


def test_faces_that_cannot_be_turned_alike_close_nothing() -> None:
    """The smallest surface with one side only: six corners, ten triangles, every edge between two of them."""
    corners = [Vec3(i, i * i, i**3) for i in range(6)]
    triangles = ["125", "126", "134", "136", "145", "234", "235", "246", "356", "456"]

    geom = Mesh(corners, [[int(digit) - 1 for digit in triangle] for triangle in triangles]).geom()

    assert (False, None) == (geom["is_closed"], geom["volume"])


def test_a_solid_is_drawn_by_its_edges() -> None:
    """As a mesh of the same shape is."""
    window, size_px = (-10.0, -10.0, 30.0, 40.0), (200, 250)

    pictures = [
        render_flats(Facts.of(drawn(build)).flats, window=window, size_px=size_px, offset=(0.0, 0.0))
        for build in (
            lambda _, msp: add_solid(msp, api.body_from_mesh(block())) and None,
            lambda _, msp: block().render_mesh(msp) and None,
        )
    ]

    with Image.open(io.BytesIO(pictures[0])) as image:
        assert (np.asarray(image) == 0).any()
    assert pictures[0] == pictures[1]

"""Evaluates B-splines and flattens them to dense polylines."""

from __future__ import annotations

from typing import Final

import numpy as np

from contract.entities import SplineGeom
from evaluator_client.tolerances import Array

_POINTS_MAX: Final = 4_096
_PER_SPAN_MIN: Final = 8
# Only to find a box, where no tolerance is known yet.
_PER_SPAN_BOX: Final = 32


def flatten_spline(geom: SplineGeom, *, sagitta: float | None, points_max: int) -> Array:
    """Points (k, 3) along the curve, so that chords leave it by at most `sagitta`; None takes a fixed fine step.

    A spline whose knots do not fit its control points is taken as its control polygon, and so is one that has more
    spans than `points_max`, which no step makes the points exceed.
    """
    control = np.array(geom.control_points, dtype=np.float64).reshape(-1, 3)
    degree, count = geom.degree, len(control)
    if count == 0:
        return np.array(geom.fit_points, dtype=np.float64).reshape(-1, 3)
    knots = np.array(geom.knots, dtype=np.float64)
    if len(knots) == 0:
        inner = np.linspace(0.0, 1.0, max(2, count - degree + 1))
        knots = np.concatenate([np.zeros(degree), inner, np.ones(degree)])
    if degree < 1 or count <= degree or len(knots) != count + degree + 1 or np.any(np.diff(knots) < 0):
        return control
    weights = np.array(geom.weights, dtype=np.float64) if len(geom.weights) == count else np.ones(count)
    spans = np.unique(knots[degree : count + 1])
    if len(spans) < 2 or len(spans) > points_max:
        return control
    homogeneous = np.concatenate([control * weights[:, None], weights[:, None]], axis=1)
    per_span = min(_PER_SPAN_BOX if sagitta is None else _PER_SPAN_MIN, points_max // len(spans))
    while True:
        steps = np.linspace(0.0, 1.0, per_span, endpoint=False)
        u = np.append((spans[:-1, None] + np.diff(spans)[:, None] * steps).ravel(), spans[-1])
        points = _evaluate(homogeneous, knots, degree, u)
        if sagitta is None or 2 * len(points) > min(_POINTS_MAX, points_max):
            return points
        middle = _evaluate(homogeneous, knots, degree, (u[:-1] + u[1:]) / 2)
        if float(np.linalg.norm(middle - (points[:-1] + points[1:]) / 2, axis=1).max()) <= sagitta:
            return points
        per_span *= 2


def _evaluate(control: Array, knots: Array, degree: int, u: Array) -> Array:
    """De Boor's algorithm for all parameters at once; `control` is homogeneous."""
    span = np.clip(np.searchsorted(knots, u, side="right") - 1, degree, len(control) - 1)
    rows = control[span[:, None] - degree + np.arange(degree + 1)]
    for level in range(1, degree + 1):
        for j in range(degree, level - 1, -1):
            low, high = knots[span - degree + j], knots[span + 1 + j - level]
            width = high - low
            share = np.where(width > 0, (u - low) / np.where(width > 0, width, 1.0), 0.0)[:, None]
            rows[:, j] = (1 - share) * rows[:, j - 1] + share * rows[:, j]
    last = rows[:, degree]
    divisor = np.where(last[:, 3:] != 0, last[:, 3:], 1.0)
    points: Array = last[:, :3] / divisor
    return points

"""Every setting that can change what the evaluator reports or draws, and its digest."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Final

from broker.evaluator.version import EVALUATOR_NAME, EVALUATOR_VERSION
from contract.metadata import Evaluator

# Scoring contract, sections 3.3 and 7.
DRAWING_BYTES_MAX: Final = 64 * 1024 * 1024
ENTITIES_MAX: Final = 200_000
MEMORY_BYTES_MAX: Final = 2 * 1024**3
DEPTH_MAX: Final = 32
COORDINATE_MAX: Final = 1e12
SAGITTA_SHARE: Final = 1e-4
# References without visible content also cost time; no honest drawing has this many.
REFERENCES_MAX: Final = 400_000

# The one font that every text is measured and drawn with, wherever the drawing was made.
FONT: Final = Path("/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf")
FONT_SIZE_PX: Final = 512
# Height of a capital letter and advance of one em, in em, from the font's OS/2 table.
CAP_HEIGHT_EM: Final = 1493 / 2048
# Distance of two base lines of MTEXT in text heights, before the entity's own factor (DXF reference, group 44).
LINE_SPACING: Final = 5 / 3


class FontMissing(Exception):
    """The font that all texts are measured with is not installed."""


@cache
def application() -> str:
    """The library that reads drawings, and its version."""
    return f"ezdxf {version('ezdxf')}"


@cache
def inspector() -> Evaluator:
    """How it signs what it reads for inspection, DWG files too. No config can pin this version, so no score has it."""
    own, reader = identity(), f"ezdwg {version('ezdwg')}"
    digest = hashlib.sha256(f"{own.config_sha256} {reader}".encode()).hexdigest()
    return Evaluator(
        name=own.name,
        version=f"{own.version}+dwg",
        application=f"{own.application}, {reader}",
        config_sha256=digest,
    )


@cache
def identity() -> Evaluator:
    """How this evaluator signs its facts. Raises `FontMissing`."""
    try:
        font_sha256 = hashlib.sha256(FONT.read_bytes()).hexdigest()
    except OSError as error:
        raise FontMissing(f"cannot read the font {FONT.name}: {error.strerror}") from error
    settings = {
        "application": application(),
        "pillow": version("pillow"),
        "font_sha256": font_sha256,
        "font_size_px": FONT_SIZE_PX,
        "drawing_bytes_max": DRAWING_BYTES_MAX,
        "entities_max": ENTITIES_MAX,
        "depth_max": DEPTH_MAX,
        "coordinate_max": COORDINATE_MAX,
        "sagitta_share": SAGITTA_SHARE,
        "references_max": REFERENCES_MAX,
        "line_spacing": LINE_SPACING,
    }
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    return Evaluator(name=EVALUATOR_NAME, version=EVALUATOR_VERSION, application=application(), config_sha256=digest)

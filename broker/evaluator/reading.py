"""Opens the drawing that a model left, or says by which rule it is invalid (scoring contract, section 7).

Everything is read from memory: nothing that the drawing refers to is ever opened.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from typing import Final

from ezdxf import recover
from ezdxf.document import Drawing
from ezdxf.filemanagement import dxf_stream_info, read

from broker.evaluator.settings import DRAWING_BYTES_MAX
from contract.metadata import InvalidCode

_BINARY_DXF: Final = b"AutoCAD Binary DXF\r\n\x1a\x00"
_DWG_TAG: Final = re.compile(rb"AC10[0-9]{2}|AC1\.[0-9]")
_DXF_START: Final = re.compile(rb"(\xef\xbb\xbf)?\s*(999[ \t]*\r?\n[^\n]*\n\s*)*0[ \t]*\r?\n[ \t]*SECTION\b")
_ENTITIES: Final = re.compile(
    rb"\n[ \t]*0[ \t]*\r?\n[ \t]*SECTION[ \t]*\r?\n[ \t]*2[ \t]*\r?\n[ \t]*ENTITIES[ \t]*\r?\n"
)
_END: Final = re.compile(rb"\n[ \t]*0[ \t]*\r?\n[ \t]*EOF[ \t]*(\r?\n|\Z)")


class Unusable(Exception):
    """The drawing is at fault."""

    def __init__(self, code: InvalidCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class Opened:
    """A readable drawing; `was_recovered` when it took the one recovery attempt.

    `notes` are warnings about the reading: code, message, and the handle of an entity or null.
    """

    document: Drawing
    was_recovered: bool
    notes: tuple[tuple[str, str, str | None], ...] = ()


def check_bytes(content: bytes, *, is_inspection: bool = False) -> None:
    """The rules that need no parser; an inspection also takes DWG files. Raises `Unusable`."""
    if not content:
        raise Unusable("missing_artifact", "there is no drawing, or it has no bytes")
    is_binary, is_dwg = content.startswith(_BINARY_DXF), _DWG_TAG.match(content) is not None
    if not is_binary and not is_dwg and not _DXF_START.match(content):
        raise Unusable("wrong_format", "the file begins neither like a DXF nor like a DWG drawing")
    if len(content) > DRAWING_BYTES_MAX:
        raise Unusable("too_large", f"the drawing has {len(content)} bytes, {DRAWING_BYTES_MAX} are allowed")
    if is_dwg:
        if is_inspection:
            return
        raise Unusable("unreadable", "the drawing is a DWG file where a DXF file was to be saved")
    # A reader may take a file that was cut off for an empty drawing, so its marks are looked for first.
    if not is_binary:
        if not _ENTITIES.search(content):
            raise Unusable("unreadable", "the DXF has no ENTITIES section")
        if not _END.search(content):
            raise Unusable("unreadable", "the DXF has no EOF mark: it was cut off")


def open_drawing(content: bytes) -> Opened:
    """Parse bytes that passed `check_bytes`. Raises `Unusable`."""
    if _DWG_TAG.match(content):
        return _opened_dwg(content)
    try:
        if not content.startswith(_BINARY_DXF):
            return Opened(read(io.StringIO(_decode(content))), was_recovered=False)
    except (MemoryError, RecursionError):
        raise
    except Exception:  # noqa: BLE001 - whatever damage makes the reader raise, one recovery attempt follows
        pass
    try:
        document, _ = recover.read(io.BytesIO(content))
    except (MemoryError, RecursionError):
        raise
    except Exception as error:
        raise Unusable("unreadable", f"the DXF cannot be opened ({type(error).__name__})") from error
    return Opened(document, was_recovered=True)


def _opened_dwg(content: bytes) -> Opened:
    # Only an inspection comes here; a score needs none of what this imports.
    from broker.evaluator.dwg import open_dwg, reader

    try:
        copy = open_dwg(content)
    except (MemoryError, RecursionError):
        raise
    except Exception as error:
        raise Unusable("unreadable", f"the DWG cannot be opened ({type(error).__name__})") from error
    what = f"a DWG drawing, read by {reader()} to be looked at; no score is pinned to this"
    unread = [("dwg_unread", f"{part.kind} cannot be read from a DWG file here", part.handle) for part in copy.unread]
    return Opened(copy.document, was_recovered=False, notes=(("dwg_inspected", what, None), *unread))


def _decode(content: bytes) -> str:
    # R2007 and later are UTF-8; older drawings name their code page in the header.
    head = io.StringIO(content[:65_536].decode("latin-1").replace("\r\n", "\n"))
    encoding = dxf_stream_info(head).encoding
    return content.decode(encoding, errors="replace").replace("\r\n", "\n")

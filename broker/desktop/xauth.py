"""MIT-MAGIC-COOKIE-1 files, written without the xauth program."""

from __future__ import annotations

import os
import secrets
import socket
import struct
from pathlib import Path
from typing import Final

COOKIE_NAME: Final = b"MIT-MAGIC-COOKIE-1"
# X11/Xauth.h: FamilyLocal is looked up by host name; FamilyWild matches whatever name the host has inside the walls.
FAMILY_LOCAL: Final = 256
FAMILY_WILD: Final = 65535


def write_cookie(path: Path) -> bytes:
    """Make a fresh random cookie that only our user can read; returns its 16 bytes.

    The display number is left empty, which matches any: the file is written before the server has chosen one.
    """
    cookie = secrets.token_bytes(16)
    entries = [(FAMILY_LOCAL, socket.gethostname().encode()), (FAMILY_WILD, b"")]
    content = b"".join(_entry(family, address, cookie) for family, address in entries)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    return cookie


def _entry(family: int, address: bytes, cookie: bytes) -> bytes:
    fields = (address, b"", COOKIE_NAME, cookie)
    return struct.pack(">H", family) + b"".join(struct.pack(">H", len(field)) + field for field in fields)

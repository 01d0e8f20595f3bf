"""What vendors check of an image, and what it costs in tokens."""

from __future__ import annotations

import binascii
import hashlib
from dataclasses import dataclass
from typing import Final

import pybase64

from tests.providers.refusals import Refusal, invalid

PNG: Final = b"\x89PNG\r\n\x1a\n"
FORMATS: Final = {
    "openai": frozenset({"png", "jpeg", "webp", "gif"}),
    "openrouter": frozenset({"png", "jpeg", "webp", "gif"}),
    "anthropic": frozenset({"png", "jpeg", "webp", "gif"}),
    "fireworks": frozenset({"png", "jpeg", "gif", "bmp", "tiff", "ppm"}),
    "mantle": frozenset({"png"}),
    "bedrock": frozenset({"png", "jpeg", "webp", "gif"}),
}
# Images of about one pixel are refused by several vendors; the smallest ones in the recorded requests are 16x9.
SIDE_PX_MIN: Final = 8
# Vendors count patches or areas: pixels that one token stands for.
PIXELS_PER_TOKEN: Final = {
    "openai": 32 * 32,
    "openrouter": 750,
    "anthropic": 750,
    "fireworks": 28 * 28,
    "mantle": 28 * 28,
    "bedrock": 750,
}


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """One image of a request. `key` is equal for equal bytes."""

    key: int
    sha256: str
    width_px: int
    height_px: int
    base64_bytes: int

    def tokens(self, provider: str) -> int:
        """What it costs."""
        return -(-self.width_px * self.height_px // PIXELS_PER_TOKEN[provider])


class ImageReader:
    """Reads images, and each one only once: histories send the same frames over and over."""

    def __init__(self) -> None:
        self._known: dict[int, ImageFacts] = {}

    def read_url(self, provider: str, url: object, where: str) -> ImageFacts:
        """An image in a `data:` URL. Raises `Refusal`."""
        head, mark, data = url.partition(";base64,") if isinstance(url, str) else ("", "", "")
        if not mark or not head.startswith("data:image/"):
            raise invalid(f"{where}: a base64 data URL of an image is expected", code="invalid_image")
        return self.read(provider, head.removeprefix("data:image/"), data, where)

    def read(self, provider: str, kind: str, data: object, where: str) -> ImageFacts:
        """An image in base64. Raises `Refusal`."""
        if kind not in FORMATS[provider]:
            raise invalid(f"{where}: image format {kind!r} is not supported", code="invalid_image")
        if not isinstance(data, str):
            raise invalid(f"{where}: image data is missing", code="invalid_image")
        key = hash(data)
        facts = self._known.get(key)
        if facts is None:
            facts = self._known[key] = _facts(key, kind, data, where)
        if min(facts.width_px, facts.height_px) < SIDE_PX_MIN:
            raise _degenerate(provider, where)
        return facts


def _facts(key: int, kind: str, data: str, where: str) -> ImageFacts:
    try:
        content = pybase64.b64decode(data, validate=True)
    except binascii.Error as error:
        raise invalid(f"{where}: not base64", code="invalid_image") from error
    if kind != "png":
        return ImageFacts(key, hashlib.sha256(content).hexdigest(), 1920, 1080, len(data))
    if not content.startswith(PNG) or content[12:16] != b"IHDR" or content[-8:-4] != b"IEND":
        raise invalid(f"{where}: the image data is not a valid image", code="invalid_image")
    width, height = int.from_bytes(content[16:20], "big"), int.from_bytes(content[20:24], "big")
    return ImageFacts(key, hashlib.sha256(content).hexdigest(), width, height, len(data))


def _degenerate(provider: str, where: str) -> Refusal:
    if provider == "mantle":
        return invalid("Failed to sanitize image")
    return invalid(f"{where}: the image is too small", code="invalid_image")

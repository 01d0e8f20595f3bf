"""Request bodies as recipes: their bytes, their lengths, and what happens when a file is not what it was."""

from __future__ import annotations

import base64
import hashlib
import itertools
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contract.errors import StateError
from contract.rollout_records import ArtifactRef
from pilot.models.body import CHUNK_BYTES, READ_BYTES, Body, Image, length_of, merged


def image_of(root: Path, content: bytes, name: str = "a.png") -> Image:
    """An image whose file holds `content`."""
    (root / name).write_bytes(content)
    return Image(root, ArtifactRef(path=name, sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content)))


def bytes_of(body: Body) -> bytes:
    """All of it."""
    return b"".join(body.chunks())


@pytest.mark.parametrize(
    "size_bytes",
    [0, 1, 2, 3, 1000, READ_BYTES - 1, READ_BYTES, READ_BYTES + 1, READ_BYTES + 2, 3 * READ_BYTES + 7],
)
def test_an_image_is_its_base64(tmp_path: Path, size_bytes: int) -> None:
    """Read in parts, whose base64 put together is that of the whole, with its length known before."""
    content = bytes(number % 251 for number in range(size_bytes))
    image = image_of(tmp_path, content)
    body = Body.of([b'{"a":"', image, b'"}'])

    assert b'{"a":"' + base64.b64encode(content) + b'"}' == bytes_of(body)
    assert body.length == len(bytes_of(body))
    assert content == image.png()


def test_chunks_are_of_about_one_size(tmp_path: Path) -> None:
    """Small ones cost a system call each, large ones memory."""
    image = image_of(tmp_path, bytes(1_000_000))
    sizes = [len(chunk) for chunk in Body.of([b"x" * 10, image, *[b"y"] * 1000, image]).chunks()]

    assert all(CHUNK_BYTES <= size < 2 * CHUNK_BYTES + 4 * READ_BYTES // 3 for size in sizes[:-1])
    assert sum(sizes) == 1010 + 2 * image.body_bytes


@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(plan=st.lists(st.one_of(st.binary(max_size=8), st.integers(0, 2)), max_size=12))
def test_merged_pieces_are_the_same_bytes_in_fewer_pieces(tmp_path: Path, plan: list[bytes | int]) -> None:
    """Between two images there is one text at most."""
    images = [image_of(tmp_path, bytes([number] * (5 + number)), f"{number}.png") for number in range(3)]
    pieces = [images[one] if isinstance(one, int) else one for one in plan]
    fewer = merged(pieces)

    assert bytes_of(Body.of(pieces)) == bytes_of(Body.of(fewer))
    assert length_of(pieces) == length_of(fewer)
    assert not any(isinstance(a, bytes) and isinstance(b, bytes) for a, b in itertools.pairwise(fewer))


def test_a_checksum_is_that_of_the_bytes_and_a_fingerprint_reads_no_file(tmp_path: Path) -> None:
    """The one is for signatures, the other for telling whether two requests are the same."""
    one, other = image_of(tmp_path, b"one"), image_of(tmp_path, b"two", "b.png")
    body = Body.of([b"a", one])
    checksum = body.sha256()
    expected = hashlib.sha256(bytes_of(body)).hexdigest()
    (tmp_path / "a.png").unlink()

    assert expected == checksum
    assert Body.of([b"a", one]).fingerprint() == body.fingerprint()
    assert Body.of([b"a", other]).fingerprint() != body.fingerprint()


@pytest.mark.parametrize("size_bytes", [None, 0, 99, 101])
def test_a_file_that_is_not_what_it_was_is_said_at_once(tmp_path: Path, size_bytes: int | None) -> None:
    """A body of another length than was announced would break the connection, and say nothing about why."""
    image = image_of(tmp_path, bytes(100))
    path = tmp_path / "a.png"
    path.unlink() if size_bytes is None else path.write_bytes(bytes(size_bytes))

    with pytest.raises(StateError, match=r"a\.png"):
        bytes_of(Body.of([image]))
    with pytest.raises(StateError, match=r"a\.png"):
        image.png()

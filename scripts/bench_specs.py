"""The provider that the wire benchmark plays against, and the rollouts that it plays."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benching import ROOT

from contract.broker_api import FrameInfo
from contract.profiles import base_url, profile_of
from contract.rollout_records import HostAddress, Limits, ModelChoice, RolloutSpec, TaskBrief

sys.path.insert(0, str(ROOT))

from tests.fakes import screen_png  # the tests are no installed package

KEY = "bench-provider-key"
# The provider whose history only grows, so that requests of any size occur.
GROWING = "openrouter"
MODELS = {
    "openai": "gpt-5.6-sol",
    "openrouter": "openai/gpt-5.6-sol",
    "anthropic": "claude-opus-5",
    "fireworks": "accounts/fireworks/routers/kimi-k2p6-fast",
    "mantle": "moonshotai.kimi-k2.5",
    "bedrock": "us.amazon.nova-pro-v1:0",
}


@dataclass(frozen=True)
class Provider:
    """A `wire_server` process."""

    process: subprocess.Popen[str]
    port: int

    @property
    def url(self) -> str:
        """Its address, without any path."""
        return f"http://127.0.0.1:{self.port}"

    def next_line(self) -> str:
        """Wait until it says something."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()


@contextmanager
def provider(*options: str) -> Iterator[Provider]:
    """A provider for as long as the block lasts."""
    command = [sys.executable, str(ROOT / "scripts" / "wire_server.py"), *options]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield Provider(process, int(process.stdout.readline()))
    finally:
        process.stdin.close()
        process.wait(10)


def make_spec(
    folder: Path, host: HostAddress | None, name: str, serving: Provider, *, turns: int = 1000, is_resume: bool = False
) -> RolloutSpec:
    """A rollout of that many turns with this provider; without a host it cannot act."""
    folder.mkdir(parents=True, exist_ok=True)
    reference = folder / "reference.png"
    reference.write_bytes(screen_png("reference"))
    row, profile = profile_of(name, MODELS[name])
    return RolloutSpec(
        batch_id="bench",
        rollout_id="wire",
        run_dir=str(folder / "rollouts" / "wire"),
        task=TaskBrief(
            task_id="bench",
            prompt="Draw the part of the reference picture.",
            host_notes="",
            reference=str(reference),
            reference_sha256=hashlib.sha256(reference.read_bytes()).hexdigest(),
        ),
        choice=ModelChoice(
            provider=name,
            model=MODELS[name],
            profile=row,
            facts=profile,
            endpoint=base_url(profile, endpoint=serving.url, region="us-east-1"),
            region="us-east-1",
            credentials_url=f"{serving.url}/credentials",
        ),
        host=host or _nowhere(),
        # Every answer is one click.
        limits=Limits(actions=turns),
        price=None,
        is_resume=is_resume,
    )


def dumped(spec: RolloutSpec) -> dict[str, Any]:
    """As it goes to another process."""
    return spec.model_dump(mode="json")


def _nowhere() -> HostAddress:
    frame = FrameInfo(
        sequence=0, sha256="0" * 64, size_bytes=1, width_px=1920, height_px=1080, verdict="ok", settle_s=0.0
    )
    return HostAddress(
        host_id="h-none",
        boot_id="boot",
        base_url="http://127.0.0.1:9",
        lease_id="lease",
        lease_generation=1,
        first_frame=frame,
    )

"""Plays whole rollouts of vendor models against the simulator, with the real SDKs, no CAD program and no waits."""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import orjson
from pydantic import SecretStr

from contract.ambient import Ambient
from contract.pricing import PriceRow, Usage
from contract.profiles import Profile, base_url, profile_of
from contract.rollout_records import Limits, ModelChoice, RolloutSpec, RunState, TaskBrief
from contract.run_dir import RunDir
from pilot.models.registry import build_model
from pilot.rollout import run_rollout
from tests.fakes import CountingDisk, FakeDesktop, FakeHost, Killed, make_world
from tests.providers.accounts import PRICES, Used, row_of
from tests.providers.images import PNG
from tests.providers.simulator import Simulator

REGION: Final = "us-east-1"
# One model for every provider and every kind of history: how each is known in tests, provider, model.
MODELS: Final = {
    "openai": ("openai", "gpt-5.6-sol"),
    "openrouter-claude": ("openrouter", "anthropic/claude-opus-5"),
    "openrouter-other": ("openrouter", "openai/gpt-5.6-sol"),
    "anthropic": ("anthropic", "claude-opus-5"),
    "anthropic-newest": ("anthropic", "claude-opus-5-5"),
    "anthropic-fable": ("anthropic", "claude-fable-5"),
    "fireworks": ("fireworks", "accounts/fireworks/routers/kimi-k2p6-fast"),
    "mantle-kimi": ("mantle", "moonshotai.kimi-k2.5"),
    "mantle-responses": ("mantle", "openai.gpt-5.6-sol"),
    "bedrock": ("bedrock", "us.amazon.nova-pro-v1:0"),
}
PROVIDER_MODELS: Final = ("openai", "openrouter-claude", "anthropic", "fireworks", "mantle-kimi", "bedrock")


def frame_of(label: str) -> bytes:
    """A whole desktop that is small as a file: the number of frames matters to these tests, not their weight."""
    return _HEAD + _chunk(b"tEXt", b"label\0" + label.encode()) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


# One bit for each pixel, all black.
_HEAD: Final = (
    PNG
    + _chunk(b"IHDR", struct.pack(">IIBBBBB", 1920, 1080, 1, 0, 0, 0, 0))
    + _chunk(b"IDAT", zlib.compress(bytes(1080 * (1 + 1920 // 8)), 9))
)


def host_for_tests() -> FakeHost:
    """A host whose frames have a desktop's size in pixels."""
    return FakeHost(make_png=frame_of)


class Killer:
    """Stands for SIGKILL from outside: once `fire` was called, nothing of the pilot gets anything done any more."""

    def __init__(self) -> None:
        self.is_dead = False

    def __call__(self) -> None:
        if self.is_dead:
            raise Killed


@dataclass
class Rollout:
    """One rollout, to be played, killed and resumed. `waits` are the seconds that it would have waited."""

    simulator: Simulator
    root: Path
    name: str
    rollout_id: str = "rollout-a"
    host: FakeHost = field(default_factory=host_for_tests)
    limits: Limits = field(default_factory=Limits)
    facts: dict[str, Any] = field(default_factory=dict)
    waits: list[float] = field(default_factory=list)
    probe: Callable[[], None] = lambda: None
    known_key: str | None = None
    base_url: str = "http://127.0.0.1:1"

    @property
    def provider(self) -> str:
        return MODELS[self.name][0]

    @property
    def run_dir(self) -> RunDir:
        return RunDir(self.root / "rollouts" / self.rollout_id)

    @property
    def profile(self) -> Profile:
        """The model's own, with this rollout's changes."""
        _, profile = profile_of(*MODELS[self.name])
        return Profile.model_validate({**profile.model_dump(), **self.facts})

    @property
    def key(self) -> SecretStr:
        """What stands in the place of a provider's key: AWS models get the token for their credentials."""
        known = self.known_key or self.simulator.keys.get(self.provider, self.simulator.vault.token)
        return SecretStr(known)

    def spec(self, *, is_resume: bool = False) -> RolloutSpec:
        """What the pilot is told."""
        provider, model = MODELS[self.name]
        reference = self.root / "task" / "reference.png"
        if not reference.exists():
            reference.parent.mkdir(parents=True, exist_ok=True)
            reference.write_bytes(frame_of("reference"))
        signs = provider in self.simulator.signing_services
        return RolloutSpec(
            batch_id="batch-a",
            rollout_id=self.rollout_id,
            run_dir=str(self.run_dir.root),
            task=TaskBrief(
                task_id="bracket",
                prompt="Draw the bracket of the reference picture. " * 20,
                host_notes="Type commands on the command line.",
                reference=str(reference),
                reference_sha256=hashlib.sha256(reference.read_bytes()).hexdigest(),
            ),
            choice=ModelChoice(
                provider=provider,
                model=model,
                profile=profile_of(provider, model)[0],
                facts=self.profile,
                endpoint=base_url(self.profile, endpoint=self.simulator.endpoints[provider], region=REGION),
                region=REGION if signs else None,
                credentials_url=self.simulator.credentials_url if signs else None,
            ),
            host=self.host.address(self.base_url),
            limits=self.limits,
            price=price_of(provider, model),
            is_resume=is_resume,
        )

    def play(self, *, is_resume: bool = False) -> RunState:
        """To the end."""
        return anyio.run(partial(self.playing, is_resume=is_resume), backend="asyncio")

    async def playing(self, *, is_resume: bool = False) -> RunState:
        """To the end, in a loop that is already there."""
        spec = self.spec(is_resume=is_resume)
        ambient = Ambient(sleep=self._sleep)
        world = make_world(
            build_model(spec, self.key, ambient=ambient),
            self.host,
            disk=CountingDisk(probe=self.probe),
            desktop=FakeDesktop(self.host, probe=self.probe),
            ambient=ambient,
        )
        return await run_rollout(spec, world)

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        await anyio.sleep(0)


def price_of(provider: str, model: str) -> PriceRow | None:
    """The row of the recorded price table, as the pilot wants it."""
    rows = orjson.loads(PRICES.read_bytes())["models"]
    row = row_of(rows, provider, model)
    if row is None:
        return None
    fields = {name: row[name] for name in ("input", "cached_input", "cache_write", "cache_write_long", "output")}
    longer = row.get("long_context")
    if longer:
        longer = {key: value if isinstance(value, str | int) else str(value) for key, value in longer.items()}
    rates = {name: None if value is None else str(value) for name, value in fields.items()}
    return PriceRow.model_validate({**rates, "long_context": longer, "use_reported_cost": provider == "openrouter"})


def usage_of(used: Used) -> Usage:
    """The simulator's bill in our own words."""
    return Usage(
        input=used.uncached,
        cached_input=used.read,
        cache_write=used.written,
        cache_write_long=used.written_long,
        output=used.output,
        reasoning=used.reasoning,
    )

"""The models that the simulator sells, and what is special about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Sold:
    """One model. `cache_min` is the smallest prefix that is cached; `binds_thinking`: thinking fits one context."""

    provider: str
    model: str
    context_tokens: int = 1_000_000
    output_tokens_max: int = 128_000
    cache_min: int = 1024
    images_max: int = 600
    reads_images: bool = True
    takes_forced_tool: bool = True
    binds_thinking: bool = False
    thinks_always: bool = False
    bills_writes: bool = True
    route: str = "/v1"
    speaks: tuple[str, ...] = ("responses",)


def _claude(model: str, **facts: int | bool) -> tuple[Sold, Sold]:
    direct = Sold("anthropic", model, speaks=("messages",), **facts)  # type: ignore[arg-type]  # a table of facts
    routed = Sold("openrouter", f"anthropic/{model}", **{**facts, "binds_thinking": False})  # type: ignore[arg-type]
    return direct, routed


SOLD: Final = {
    (sold.provider, sold.model): sold
    for sold in (
        Sold("openai", "gpt-5.4", context_tokens=1_050_000, bills_writes=False, images_max=1500),
        Sold("openai", "gpt-5.5", context_tokens=1_050_000, bills_writes=False, images_max=1500),
        Sold("openai", "gpt-5.6-sol", context_tokens=1_050_000, images_max=1500),
        Sold("openai", "gpt-5.6-terra", context_tokens=1_050_000, images_max=1500),
        Sold("openai", "gpt-5.6-luna", context_tokens=1_050_000, images_max=1500),
        Sold("openrouter", "openai/gpt-5.4", bills_writes=False, images_max=1500),
        Sold("openrouter", "openai/gpt-5.6-sol", images_max=1500),
        Sold("openrouter", "example/text-only", context_tokens=32_768, reads_images=False),
        *_claude("claude-opus-5", cache_min=512),
        *_claude("claude-opus-4-8"),
        *_claude("claude-sonnet-5"),
        *_claude("claude-sonnet-4-6"),
        *_claude("claude-haiku-4-5", cache_min=4096, context_tokens=200_000, images_max=100),
        *_claude("claude-haiku-5-5", cache_min=512),
        *_claude("claude-fable-5", cache_min=512, thinks_always=True),
        *_claude("claude-fable-5-1", cache_min=512, thinks_always=True, takes_forced_tool=False, binds_thinking=True),
        *_claude("claude-fable-5-2", cache_min=512, thinks_always=True, takes_forced_tool=False, binds_thinking=True),
        *_claude("claude-opus-5-5", cache_min=512, takes_forced_tool=False, binds_thinking=True),
        *_claude("claude-sonnet-5-5", cache_min=512, takes_forced_tool=False, binds_thinking=True),
        Sold("anthropic", "claude-text-example", reads_images=False, speaks=("messages",)),
        Sold("fireworks", "accounts/fireworks/routers/kimi-k2p6-fast", context_tokens=262_144, images_max=30,
             cache_min=256, bills_writes=False, speaks=("chat",)),
        Sold("fireworks", "accounts/fireworks/models/kimi-k2p6", context_tokens=262_144, images_max=30,
             cache_min=256, bills_writes=False, speaks=("chat",)),
        Sold("mantle", "moonshotai.kimi-k2.5", context_tokens=262_144, output_tokens_max=16_384, cache_min=256,
             bills_writes=False, speaks=("chat",)),
        Sold("mantle", "openai.gpt-oss-example", context_tokens=262_144, bills_writes=False),
        Sold("mantle", "openai.gpt-5.6-sol", route="/openai/v1"),
        Sold("mantle", "openai.gpt-5.5", route="/openai/v1", bills_writes=False),
        Sold("bedrock", "us.amazon.nova-pro-v1:0", context_tokens=300_000, output_tokens_max=10_000, images_max=20,
             speaks=("converse",)),
        Sold("bedrock", "amazon.nova-pro-v1:0", context_tokens=300_000, output_tokens_max=10_000, images_max=20,
             speaks=("converse",)),
        Sold("bedrock", "us.anthropic.claude-opus-5", cache_min=512, images_max=20, speaks=("converse",)),
    )
}  # fmt: skip

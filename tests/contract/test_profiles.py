"""Profiles: which one a model gets, what a config may add, and the facts that cost money when they are wrong."""

from __future__ import annotations

from typing import Any

import pytest

from contract.errors import ConfigError
from contract.profiles import (
    ADDRESSES,
    DEFAULTS,
    IMAGE_MODELS,
    KNOWN_MODELS,
    MIB,
    PROFILES,
    BadProfile,
    HistoryKind,
    Profile,
    UnknownProfile,
    Wire,
    base_url,
    custom_profiles,
    nearest,
    profile_of,
    reads_images,
)

BY_DEFAULT: list[tuple[str, str, str]] = [
    ("openai", "gpt-5.6-sol", "openai-responses"),
    ("openrouter", "openai/gpt-5.4", "openrouter-responses"),
    ("openrouter", "anthropic/claude-opus-5", "openrouter-claude-responses"),
    ("openrouter", "anthropic/claude-opus-5.5", "openrouter-claude-auto-responses"),
    ("openrouter", "anthropic/claude-haiku-4.5", "openrouter-claude-200k-responses"),
    ("anthropic", "claude-opus-5", "anthropic-messages"),
    ("anthropic", "claude-sonnet-5", "anthropic-messages"),
    ("anthropic", "claude-haiku-5-5", "anthropic-messages"),
    ("anthropic", "claude-opus-4-8", "anthropic-messages"),
    ("anthropic", "claude-sonnet-4-6", "anthropic-messages"),
    ("anthropic", "claude-haiku-4-5", "anthropic-messages-200k"),
    ("anthropic", "claude-sonnet-4-5-20250929", "anthropic-messages-200k"),
    ("anthropic", "claude-opus-4-20250514", "anthropic-messages-200k"),
    ("anthropic", "claude-opus-5-5", "anthropic-messages-auto"),
    ("anthropic", "claude-sonnet-5-5", "anthropic-messages-auto"),
    ("anthropic", "claude-mythos-5", "anthropic-messages-auto"),
    ("anthropic", "claude-mythos-5-1", "anthropic-messages-auto"),
    ("anthropic", "claude-fable-5", "anthropic-fable-messages"),
    ("anthropic", "claude-fable-5-1", "anthropic-fable-auto-messages"),
    ("anthropic", "claude-fable-5-2", "anthropic-fable-auto-messages"),
    ("fireworks", "accounts/fireworks/routers/kimi-k2p6-fast", "fireworks-kimi-k2p6-fast-chat"),
    ("mantle", "moonshotai.kimi-k2.5", "mantle-kimi-k2.5-chat"),
    ("mantle", "openai.gpt-5.6-sol", "mantle-openai-responses"),
    ("mantle", "openai.gpt-oss-120b", "mantle-responses"),
    ("bedrock", "us.amazon.nova-pro-v1:0", "bedrock-converse"),
    ("bedrock", "us.anthropic.claude-opus-5", "bedrock-converse"),
    ("bedrock", "global.anthropic.claude-opus-5-5", "bedrock-auto-converse"),
    ("bedrock", "mistral.mistral-large-2407-v1:0", "bedrock-any-converse"),
    ("bedrock", "us.meta.llama4-maverick-17b-instruct-v1:0", "bedrock-auto-converse"),
]


@pytest.mark.parametrize(("provider", "model", "name"), BY_DEFAULT)
def test_a_model_has_a_profile_by_default(provider: str, model: str, name: str) -> None:
    """An operator names a provider and a model; what is true of them follows."""
    assert (name, PROFILES[name]) == profile_of(provider, model)


def test_every_default_is_a_row_of_its_provider() -> None:
    """A name in the table of defaults that no row has would only be found by the model that needs it."""
    for provider, defaults in DEFAULTS.items():
        for _, name in defaults:
            assert provider == PROFILES[name].provider


@pytest.mark.parametrize(
    ("provider", "model"),
    [
        ("fireworks", "accounts/fireworks/models/kimi-k2p6"),
        ("mantle", "moonshotai.kimi-k2-thinking"),
        ("mantle", "anthropic.claude-opus-5"),
        ("nobody", "gpt-5.6-sol"),
    ],
)
def test_a_model_that_nothing_is_known_about_gets_no_profile(provider: str, model: str) -> None:
    """A guess would send requests that are refused, or that miss a limit; the operator names a profile instead."""
    with pytest.raises(UnknownProfile) as caught:
        profile_of(provider, model)

    assert model == caught.value.name
    assert tuple(name for name, row in PROFILES.items() if row.provider == provider) == caught.value.known


def test_a_profile_can_be_chosen_by_name() -> None:
    """The default is a default."""
    assert "anthropic-messages" == profile_of("anthropic", "claude-fable-5", "anthropic-messages")[0]


def test_a_profile_of_another_provider_is_unknown() -> None:
    """A Fireworks row says nothing about a model of Mantle."""
    with pytest.raises(UnknownProfile) as caught:
        profile_of("mantle", "moonshotai.kimi-k2.5", "fireworks-kimi-k2p6-fast-chat")

    assert "mantle-kimi-k2.5-chat" in caught.value.known


def test_a_config_adds_rows_that_extend_known_ones() -> None:
    """A new model is a new row, also for somebody who does not change the code."""
    custom = custom_profiles({"short": {"extends": "openai-responses", "max_output_tokens": 1024}})

    name, profile = profile_of("openai", "gpt-5.6-sol", "short", custom)

    assert "short" == name
    assert PROFILES["openai-responses"].model_copy(update={"max_output_tokens": 1024}) == profile


def test_a_config_row_can_stand_for_itself() -> None:
    """Without `extends` a row has to say all that has no default."""
    raw = {"mine": {"provider": "fireworks", "wire": "chat", "history": "digest", "digest_messages": 10}}

    expected = Profile(provider="fireworks", wire=Wire.CHAT, history=HistoryKind.DIGEST, digest_messages=10)
    assert {"mine": expected} == custom_profiles(raw)


@pytest.mark.parametrize(
    ("row", "fields", "field", "says"),
    [
        ("mine", {"extends": "openai-response"}, "extends", "the nearest one is 'openai-responses'"),
        ("mine", {"extends": 3}, "extends", "no built-in profile 3"),
        ("mine", {"extends": "openai-responses", "max_tokens": 5000}, "max_tokens", "no such field"),
        ("mine", {"extends": "openai-responses", "image_max": 5}, "image_max", "the nearest one is 'images_max'"),
        ("mine", {"extends": "openai-responses", "max_output_tokens": "many"}, "max_output_tokens", "valid integer"),
        ("mine", {"extends": "openai-responses", "wire": "soap"}, "wire", "'responses', 'chat'"),
        ("mine", {"provider": "openai", "wire": "responses"}, "history", "Field required"),
        ("openai-responses", {"extends": "openai-responses"}, None, "built-in profile of this name"),
    ],
)
def test_a_bad_row_is_named_with_its_field(row: str, fields: dict[str, Any], field: str | None, says: str) -> None:
    """An operator fixes one word, and is told which."""
    with pytest.raises(BadProfile, match="profiles") as caught:
        custom_profiles({row: fields})

    assert (row, field) == (caught.value.row, caught.value.field)
    assert says in caught.value.problem


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("openai-responses", "https://api.openai.com/v1"),
        ("openrouter-responses", "https://openrouter.ai/api/v1"),
        ("anthropic-messages", "https://api.anthropic.com"),
        ("fireworks-kimi-k2p6-fast-chat", "https://api.fireworks.ai/inference/v1"),
        ("mantle-kimi-k2.5-chat", "https://bedrock-mantle.us-east-1.api.aws/v1"),
        ("mantle-openai-responses", "https://bedrock-mantle.us-east-1.api.aws/openai/v1"),
        ("bedrock-converse", "https://bedrock-runtime.us-east-1.amazonaws.com"),
    ],
)
def test_a_provider_is_found_at_its_own_address(name: str, expected: str) -> None:
    """A wrong prefix is answered with a 400 that does not say so."""
    assert expected == base_url(PROFILES[name], endpoint=None, region="us-east-1")


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080/inference/v1"),
        ("http://127.0.0.1:8080/", "http://127.0.0.1:8080/inference/v1"),
        ("https://gateway.example/fireworks/v1/", "https://gateway.example/fireworks/v1"),
    ],
)
def test_an_endpoint_with_a_path_is_taken_as_it_is(endpoint: str, expected: str) -> None:
    """A gateway has paths of its own; a bare host has the provider's."""
    profile = PROFILES["fireworks-kimi-k2p6-fast-chat"]

    assert expected == base_url(profile, endpoint=endpoint, region=None)


def test_an_address_in_aws_needs_a_region() -> None:
    """There is no default region: another one has other models, prices and quotas."""
    with pytest.raises(ConfigError, match="no AWS region") as caught:
        base_url(PROFILES["bedrock-converse"], endpoint=None, region=None)

    assert "aws.region" == caught.value.field


def test_tools_are_strict_where_the_provider_takes_it() -> None:
    """Other Mantle models and Bedrock are validated by us alone until they are known to accept the flag."""
    lax = {name for name, row in PROFILES.items() if not row.strict_tools}

    assert {
        "mantle-responses",
        "mantle-openai-responses",
        "bedrock-converse",
        "bedrock-any-converse",
        "bedrock-auto-converse",
    } == lax


def test_only_anthropic_beside_fable_is_compacted_by_the_server() -> None:
    """Fable's history is cut by ourselves; a header or a field that asks for more would change its sampling."""
    asking = {name for name, row in PROFILES.items() if "context_management" in row.extra_body}
    announcing = {name for name, row in PROFILES.items() if "compact-2026-01-12" in row.headers.values()}

    assert {"anthropic-messages", "anthropic-messages-200k", "anthropic-messages-auto"} == asking == announcing
    edits = PROFILES["anthropic-messages"].extra_body["context_management"]["edits"]
    assert [{"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 150_000}}] == edits


def test_the_limits_of_every_history_are_those_of_the_specification() -> None:
    """When a digest is made, and how large a request may grow."""

    def limits(name: str) -> tuple[object, ...]:
        row = PROFILES[name]
        return (row.digest_messages, row.digest_turns, row.digest_input_tokens, row.outcomes_kept, row.body_bytes_max)

    assert (24, None, None, 16, 3 * MIB) == limits("mantle-kimi-k2.5-chat")
    assert (24, None, None, 16, 8 * MIB) == limits("fireworks-kimi-k2p6-fast-chat")
    assert (None, 24, 90_000, 16, 24 * MIB) == limits("anthropic-fable-messages")
    assert (None, None, None, 16, 24 * MIB) == limits("anthropic-messages")


def test_kimi_thinks_within_its_output() -> None:
    """A budget of 1,024 tokens in a ceiling of 2,048, on the Fast router, which excludes a service tier."""
    row = PROFILES["fireworks-kimi-k2p6-fast-chat"]

    assert {"type": "enabled", "budget_tokens": 1024} == row.extra_body["thinking"]
    assert 2048 == row.max_output_tokens
    assert "service_tier" not in row.extra_body
    assert ("x-session-affinity", "x-multi-turn-session-id") == row.sticky_headers
    assert ("prompt_cache_key",) == row.sticky_fields


def test_every_provider_has_an_address_and_known_models() -> None:
    """Tables by provider that forget one would fail for it alone."""
    providers = {row.provider for row in PROFILES.values()}

    assert providers == set(ADDRESSES) == set(DEFAULTS) == set(KNOWN_MODELS)


def test_what_is_pinned_about_images_is_a_yes_or_nothing() -> None:
    """A model that no table names is unknown, which is not the same as blind."""
    openai = PROFILES["openai-responses"]

    assert reads_images(openai, "gpt-5.6-sol") is True
    assert reads_images(openai, "gpt-5.6-so") is None
    assert reads_images(openai.model_copy(update={"reads_images": False}), "gpt-5.6-sol") is False
    assert all(profile_of(provider, model) for provider, models in IMAGE_MODELS.items() for model in models)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("gpt-5.6-soll", "gpt-5.6-sol"), ("GPT-5.4", "gpt-5.4"), ("a thing of its own", None)],
)
def test_the_nearest_known_name_is_offered(name: str, expected: str | None) -> None:
    """A typo is answered with what was meant, and nonsense with nothing."""
    assert expected == nearest(name, KNOWN_MODELS["openai"])

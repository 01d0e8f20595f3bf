"""No key leaves in a text, and a text without keys leaves as it came."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import SecretStr

from contract.redaction import REDACTED, redact

# Shapes of keys with the text around them; none of them is or was a real key.
HEX_64 = "5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7"
KEYS = [
    "sk-Ab3dEf6hIj9kLm2nOp5qRs8tUv1wXy4z",
    "sk-proj-Ab3dEf6hIj9k_Lm2nOp5qRs8tUv1wXy4z-T3BlbkFJ0123456789",
    "sk-svcacct-Ab3dEf6hIj9kLm2nOp5qRs8t",
    "sk-admin-Ab3dEf6hIj9kLm2nOp5qRs8t",
    "sess-Ab3dEf6hIj9kLm2nOp5qRs8tUv1wXy4z",
    "sk-ant-api03-Ab3dEf6hIj9kLm2nOp5qRs8tUv1wXy4z-AbCdEfAA",
    "sk-ant-admin01-Ab3dEf6hIj9kLm2nOp5qRs8t",
    "sk-ant-oat01-Ab3dEf6hIj9kLm2nOp5qRs8t",
    "sk-or-v1-" + HEX_64,
    "fw_3ZAb3dEf6hIj9kLm2nOp5q",
    "AKIAIOSFODNN7EXAMPLE",
    "ASIAIOSFODNN7EXAMPLE",
    "IQoJb3JpZ2luX2VjEOr//////////wEaCXVzLWVhc3QtMSJHMEUCIQ==",
    "FwoGZXIvYXdzEBYaDKXwAb3dEf6hIj9kLm2nOp5q",
    "ABSKQmVkcm9ja0FQSUtleS1hYmNkZWZnaGlqa2w=",
    "bedrock-api-key-YmVkcm9jay5hbWF6b25hd3MuY29tLz9BY3Rpb24",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P",
    "ghp_Ab3dEf6hIj9kLm2nOp5qRs8tUv1wXy4z1234",
    "github_pat_11ABCDEFG0Ab3dEf6hIj9kLm2nOp5q",
    "glpat-Ab3dEf6hIj9kLm2nOp5q",
    "xoxb-123456789012-123456789012-Ab3dEf6hIj9kLm2n",
    "AIzaSyAb3dEf6hIj9kLm2nOp5qRs8tUv1wXy4z0",
    "ya29.Ab3dEf6hIj9kLm2nOp5qRs8t",
    "hf_Ab3dEf6hIj9kLm2nOp5qRs8tUv1wXy",
    "gsk_Ab3dEf6hIj9kLm2nOp5qRs8tUv1wXy",
    "npm_Ab3dEf6hIj9kLm2nOp5qRs8tUv1wXy",
    "r8_Ab3dEf6hIj9kLm2nOp5qRs8tUv1wXy",
    "xai-Ab3dEf6hIj9kLm2nOp5qRs8tUv1wXy",
    "pplx-Ab3dEf6hIj9kLm2nOp5qRs8tUv1wXy",
    "rk_live_Ab3dEf6hIj9kLm2n",
    "SG.Ab3dEf6hIj9kLm2nOp5qRs.Ab3dEf6hIj9kLm2nOp5qRs8tUv1wXy4z",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA0123\nabc==\n-----END RSA PRIVATE KEY-----",
    "sk-exa***mple",
    "sk-abc...wxyz",
    "abcd****wxyz",
]
# A text, and the part of it that must not stay.
QUOTES = [
    ("Authorization: Bearer 3f9a8b7c6d5e4f3a", "3f9a8b7c6d5e4f3a"),
    ("authorization: Basic dXNlcjpwYXNzd29yZA==", "dXNlcjpwYXNzd29yZA"),
    ('{"Authorization": "Token 0123456789abcdef"}', "0123456789abcdef"),
    ("x-api-key: 0f1e2d3c4b5a6978", "0f1e2d3c4b5a6978"),
    ('"x-api-key": "justletterssohere"', "justletterssohere"),
    ("OPENAI_API_KEY=abcd1234efgh5678", "abcd1234efgh5678"),
    ("export MY_SERVICE_API_KEY='quotedletters'", "quotedletters"),
    ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "wJalrXUtnFEMI"),
    ('{"SecretAccessKey": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"}', "wJalrXUtnFEMI"),
    ("x-amz-security-token: AbCd0123+/EfGh4567==", "AbCd0123"),
    ('{"SessionToken":"AbCd0123EfGh4567"}', "AbCd0123"),
    ('{\\"TokenValue\\": \\"AAEAAcWnmmhqQOrZ\\"}', "AAEAAcWnmmhqQOrZ"),
    ("AUTOCAD_BENCH_BROKER_TOKEN=canary-broker-token-5b1f", "5b1f"),
    (
        "AWS4-HMAC-SHA256 Credential=AKID/20261101/us-east-1/bedrock/aws4_request, SignedHeaders=host, Signature=ab12",
        "ab12",
    ),
    (f"the canonical Signature={HEX_64} differs", HEX_64),
    ("https://b.s3.amazonaws.com/a.png?X-Amz-Expires=60&X-Amz-Signature=abc123&x=1", "abc123"),
    ("https://b.s3.amazonaws.com/a.png?X-Amz-Credential=AKID%2F2026&x=1", "AKID"),
    ("https://s3/b?AWSAccessKeyId=AKID&Signature=a%2Bb%3D&Expires=1", "a%2Bb"),
    ("https://a.blob.core/x?sv=1&amp;sig=Zm9v%3D", "Zm9v"),
    ("GET /v1/models?key=abc123def", "abc123def"),
    ("http://user:hunter2hunter@127.0.0.1:8080/v1", "hunter2"),
    ("set-cookie: __cf_bm=AbCd.0123-EfGh; path=/", "AbCd.0123"),
    ("password: correct-horse-7", "correct-horse"),
]
ORDINARY = [
    "Draw the bracket of the reference picture: line 0,0 to 120,0, then arc r=25 to 120,50.",
    "Type commands on the command line. `polyline`, `trim`, `hatch ANSI31`, ø12 ±0.05, 45°; ***",
    "LibreCAD 2.2.1.2-1 opened /tmp/run-7/rollouts/openai-5-6-sol-plate/attempt.dxf (16*16 px) **bold** text",
    "Basic drawing, Basic 2D-drafting with AutoCAD2024; a bearer of news; Bearer token missing; invalid x-api-key",
    "request req_011CSHoEeqs5C35K2UUqR7Fy, resp_0a1b2c3d4e5f60718293a4b5c6d7e8f9, toolu_01A09q90qw90lq917835lq9",
    "call_Ab3dEf6hIj9kLm2nOp5qRs8t functions.computer_action:0 gen-1790000000-abcDEF123456 msg_01XFDUDYJgAACzvn",
    "11111111-2222-3333-4444-555555555555 0f8fad5b-d9cb-469f-a165-70867728950e",
    HEX_64 + " d41d8cd98f00b204e9800998ecf8427e da39a3ee5e6b4b0d3255bfef95601890afd80709",
    "accounts/fireworks/routers/kimi-k2p6-fast, us.anthropic.claude-opus-5, moonshotai.kimi-k2.5, gpt-5.6-sol",
    "risk-assessment-of-the-whole-task-in-2026, disk-usage-0123456789abcdef, task-0123456789abcdef0123",
    "prompt is too long: 1004213 tokens > 1000000 maximum; max_tokens: 4096; cached_tokens=3072; api_key is missing",
    "Set OPENAI_API_KEY, ANTHROPIC_API_KEY or AWS_PROFILE; authorization: see the documentation of this provider",
    "https://api.openai.com/v1/responses?region=us-east-1&limit=1000 http://127.0.0.1:8123/v1 mail@example.org",
    '{"rollout_id": "r-1", "sha256": "' + HEX_64 + '", "tokens": {"input": 12}, "session_id": "batch7-rollout3"}',
    "AKIA, ASIA and ASIAN markets; SIGNATURE; Signature=none; Credential=none; key=value; token=1",
]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("around", ["{}", "Incorrect API key provided: {}.", '{{"detail": "{}"}}', "a={},b"])
def test_a_key_is_known_by_its_shape(key: str, around: str) -> None:
    """A provider may quote a key that we never held: another one, or the half of one that it masked."""
    left = redact(around.format(key))

    assert around.format(REDACTED) == left or key[6:] not in left, left
    assert key not in left


@pytest.mark.parametrize(("text", "hidden"), QUOTES)
def test_a_key_is_known_by_what_stands_before_it(text: str, hidden: str) -> None:
    """Headers, assignments, addresses and JSON fields say what their values are."""
    left = redact(text)

    assert hidden not in left, left
    assert REDACTED in left
    assert text[:5] == left[:5]


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    """A message that lost its request id or its checksum helps nobody."""
    assert text == redact(text, [SecretStr("canary-key-of-this-test")])


SECRETS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=8, max_size=80)


@given(SECRETS)
@example("p@ss/w+rd =&?%\"'<>\\ é")
@example("sk-canary/+==abcdefgh")
def test_a_known_secret_is_taken_out_in_every_encoding(secret: str) -> None:
    """URLs, JSON, reprs, base64 of anything that holds it, and hexadecimal digits."""
    raw = secret.encode()
    forms = [secret, quote(secret, safe=""), quote(secret), quote_plus(secret), quote(quote(secret, safe=""), safe="")]
    forms += [json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1], repr(secret)[1:-1], raw.hex()]

    for form in forms:
        assert form not in redact(f"<{form}>", [SecretStr(secret)]).strip("<>") or form in REDACTED


@given(st.binary(max_size=20), st.text("abcdefghijklmnopqrstuvwxyz0123456789/+-", min_size=10), st.binary(max_size=20))
def test_base64_of_a_secret_among_other_bytes_is_taken_out(before: bytes, secret: str, after: bytes) -> None:
    """`Authorization: Basic` is base64 of a user's name and then the secret, so it begins anywhere."""
    encoded = base64.b64encode(before + secret.encode() + after).decode()

    assert encoded != redact(encoded, [SecretStr(secret)])
    assert encoded != redact(encoded.replace("+", "-").replace("/", "_"), [SecretStr(secret)])


def test_a_short_secret_is_left_alone() -> None:
    """Taking `a` out of a text leaves no text."""
    assert "a plate" == redact("a plate", [SecretStr("a"), SecretStr("")])


@given(st.lists(st.sampled_from([*KEYS, *(text for text, _ in QUOTES), *ORDINARY]), min_size=1, max_size=4))
def test_json_text_stays_json_text(texts: list[str]) -> None:
    """The plan is redacted as text, and a program reads it."""
    document = {"texts": texts, "nested": json.dumps(texts)}

    assert document.keys() == json.loads(redact(json.dumps(document, indent=2, ensure_ascii=False))).keys()


@given(st.text(max_size=300))
def test_no_text_is_refused_and_redacting_twice_changes_nothing_more(text: str) -> None:
    """It runs while an error is being reported, so it may not be one."""
    once = redact(text)

    assert once == redact(once)

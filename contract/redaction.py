"""The last wall before text leaves us: no key goes into a message, a trace or a log because somebody quoted it.

Known secrets are taken out in every form that a quote may give them; what looks like a key of some vendor is taken out
too, because a provider may quote one that we never held.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Final
from urllib.parse import quote, quote_plus

from pydantic import SecretStr

REDACTED: Final = "[secret]"
# Shorter values are no keys, and taking them out of a text would only garble it.
SECRET_CHARS_MIN: Final = 8


def redact(text: str, secrets: Iterable[SecretStr] = ()) -> str:
    """`text` without the secrets, in whatever encoding, and without anything that has the shape of a key.

    What stands around a key stays, so that a message still says what it is about; JSON text stays JSON text.
    """
    values = {secret.get_secret_value() for secret in secrets}
    forms = {form for value in values if len(value) >= SECRET_CHARS_MIN for form in _forms(value)}
    # Longest first: a form that is part of another one would leave the rest of it.
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, REDACTED)
    for shape in _compiled():
        text = shape.sub(_without_value, text)
    return text


def _forms(value: str) -> Iterator[str]:
    yield value
    for url in (quote(value, safe=""), quote(value), quote_plus(value)):
        yield url
        yield re.sub("%[0-9A-F]{2}", lambda escape: escape[0].lower(), url)
        yield quote(url, safe="")
    for escaped in (json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]):
        yield escaped
        yield escaped.replace("/", "\\/")
    yield repr(value)[1:-1]
    yield html.escape(value)
    raw = value.encode(errors="surrogatepass")
    yield raw.hex()
    yield raw.hex().upper()
    for core in _base64_cores(raw):
        yield core
        yield core.replace("+", "-").replace("/", "_")


def _base64_cores(raw: bytes) -> Iterator[str]:
    """What base64 makes of `raw` wherever it begins in the encoded bytes: `user:<secret>` of Basic too.

    The characters at both ends that also depend on the neighbours are left out.
    """
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + raw).decode().rstrip("=")
        bits_before, bits = 8 * before, 8 * (before + len(raw))
        core = encoded[(bits_before + 5) // 6 : bits // 6]
        if len(core) >= SECRET_CHARS_MIN:
            yield core


@cache
def _compiled() -> tuple[re.Pattern[str], ...]:
    # Compiled at the first use: most processes never quote anything.
    return tuple(re.compile(shape) for shape in _SHAPES)


def _without_value(match: re.Match[str]) -> str:
    """The match with its groups kept and the rest of it replaced."""
    before = match["before"] if "before" in match.re.groupindex else ""
    after = match["after"] if "after" in match.re.groupindex else ""
    return f"{before or ''}{REDACTED}{after or ''}"


# What a key is made of. A word of a sentence has no digit and is shorter than 24 letters.
_CHARS: Final = r"[A-Za-z0-9._~+/=\-*]"
_VALUE: Final = rf"(?=[A-Za-z._~+/=\-]{{0,400}}[0-9*]|{_CHARS}{{24}}){_CHARS}{{8,}}"
_START: Final = r"(?<![A-Za-z0-9])"

# Fields that hold a key: in JSON, in assignments, in headers. Inside quotes every value counts.
_NAMES: Final = (
    r"(?:[A-Za-z0-9]{1,40}[_-]){0,6}(?:api[_-]?key|api[_-]?token|access[_-]?token|refresh[_-]?token|auth[_-]?token|id[_-]?token"
    r"|broker[_-]?token|bearer[_-]?token|session[_-]?token|security[_-]?token|token[_-]?value|secret[_-]?access[_-]?key"
    r"|access[_-]?key[_-]?id|secret[_-]?key|client[_-]?secret|private[_-]?key|password|passwd)"
)
_QUOTE: Final = r"(?:\\?[\"'])"

_SHAPES: Final = (
    r"(?s)-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----.{0,6000}?-----END [A-Z ]{0,30}PRIVATE KEY-----",
    # A signed request, whole or its parts.
    (
        r"(?P<before>AWS4(?:-HMAC-SHA256|-ECDSA-P256-SHA256)\s+)Credential=[^\s\"'\\]+"
        r"(?:,?\s*(?:SignedHeaders|Signature)=[^\s,\"'\\]+)*"
    ),
    r"(?i)(?P<before>\bSignature=)[0-9a-f]{32,}",
    # The query of a presigned address: S3, older S3, Google, Azure, and tokens in addresses.
    (
        r"(?i)(?P<before>[?&;](?:amp;)?(?:X-(?:Amz|Goog)-(?:Signature|Credential|Security-Token)|AWSAccessKeyId|Signature"
        r"|sig|(?:access_?|id_?|auth_?)?token|api_?key|key)=)[^&\s\"'<>\\]+"
    ),
    # A password in an address.
    r"(?P<before>[A-Za-z][A-Za-z0-9+.-]{0,20}://[^\s/:@\"'\\]{0,200}:)[^\s/@\"'\\]{1,400}(?P<after>@)",
    r"(?i)(?P<before>\b(?:Bearer|ApiKey)\s+)" + _VALUE,
    r"(?P<before>\b[Bb]asic\s+)(?=[A-Za-z0-9+/]{0,200}[a-z][A-Z0-9+/])(?:[A-Za-z0-9+/]{4}){3,}(?:[A-Za-z0-9+/]{2}[A-Za-z0-9+/=]=)?",
    rf"(?i)(?P<before>\b(?:proxy-)?authorization{_QUOTE}?\s*[:=]\s*{_QUOTE}?(?:[a-z][a-z0-9-]{{2,20}}\s+)?)(?!\[secret\]|AWS4)"
    + _VALUE,
    rf"(?i)(?P<before>\b(?:set-)?cookie{_QUOTE}?\s*[:=]\s*{_QUOTE}?[A-Za-z0-9_.-]{{1,64}}=)[^;\s\"'\\]{{8,}}",
    rf"(?i)(?P<before>{_START}{_NAMES}{_QUOTE}?\s*[:=]\s*{_QUOTE})(?!\[secret\])[^\"'\\\s]{{8,}}(?P<after>\\?[\"'])",
    rf"(?i)(?P<before>{_START}{_NAMES}{_QUOTE}?\s*[:=]\s*{_QUOTE}?)" + _VALUE,
    # JSON web tokens.
    rf"{_START}eyJ[A-Za-z0-9_-]{{8,}}\.[A-Za-z0-9_-]{{8,}}(?:\.[A-Za-z0-9_-]+)?",
    # Keys that name their vendor: OpenAI, Anthropic, OpenRouter and their kin; also when a part is masked.
    rf"{_START}(?:sk|pk|rk|sess)-(?=[A-Za-z_-]{{0,200}}[0-9*]|[A-Za-z0-9_-]{{32}})[A-Za-z0-9_-]{{16,}}",
    rf"{_START}(?:sk|rk)-[A-Za-z0-9_-]{{0,100}}(?:[*•…]{{1,100}}|\.{{3,100}})[A-Za-z0-9_-]{{0,100}}",
    r"(?<![A-Za-z0-9*])[A-Za-z0-9_-]{2,100}\*{3,100}[A-Za-z0-9_-]{2,100}",
    # Fireworks, Stripe, GitHub, GitLab, Slack, Google, Hugging Face, Groq, xAI, Perplexity, Replicate, npm, SendGrid.
    rf"{_START}fw_[A-Za-z0-9]{{16,}}",
    rf"{_START}(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{{12,}}",
    rf"{_START}gh[pousr]_[A-Za-z0-9]{{20,}}|{_START}github_pat_[A-Za-z0-9_]{{20,}}|{_START}glpat-[A-Za-z0-9_-]{{16,}}",
    rf"{_START}xox[abeprs]-[A-Za-z0-9-]{{10,}}|{_START}xapp-[A-Za-z0-9-]{{10,}}",
    rf"{_START}AIza[A-Za-z0-9_-]{{30,}}|{_START}ya29\.[A-Za-z0-9_-]{{20,}}",
    rf"{_START}(?:hf|gsk|npm|r8)_[A-Za-z0-9]{{20,}}|{_START}(?:xai|pplx)-[A-Za-z0-9]{{20,}}",
    rf"{_START}SG\.[A-Za-z0-9_-]{{16,}}\.[A-Za-z0-9_-]{{16,}}",
    # AWS: access key ids, Bedrock keys, and session tokens, whose beginning is the same everywhere.
    rf"{_START}(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{{16}}(?![A-Za-z0-9])",
    rf"{_START}bedrock-api-key-[A-Za-z0-9+/=_-]{{16,}}|{_START}ABSK[A-Za-z0-9+/=]{{20,}}",
    rf"{_START}(?:IQoJb3JpZ2lu|FwoGZXIvYXdz|FQoGZXIvYXdz|AgoJb3JpZ2lu|AQoEXAMPLE)[A-Za-z0-9+/=_%-]{{16,}}",
)

"""The vendors' lists of models, with their pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import orjson

from tests.providers.http import Reply, Request
from tests.providers.models import SOLD, Sold
from tests.providers.refusals import JSON, Refusal, invalid

ACCOUNT: Final = "123456789012"


@dataclass
class Catalogs:
    """What the lists say. `hidden` are (provider, model) that are sold and not listed; `page_size` is the largest."""

    page_size: int = 1000
    hidden: frozenset[tuple[str, str]] = frozenset()
    # Whether Fireworks lists its routers: it does for some accounts.
    lists_routers: bool = True
    # Older versions of Anthropic's list leave the capabilities out.
    has_capabilities: bool = True
    legacy: frozenset[str] = frozenset({"example.retired-v1"})

    def answer(self, request: Request) -> Reply | None:
        """The answer to a list request, or None when the path is no list. Raises `Refusal`."""
        match request.server, request.path:
            case "openai", "/v1/models":
                return _json({"object": "list", "data": [_openai(sold) for sold in self._sold("openai")]})
            case "openrouter", "/api/v1/models":
                return self._openrouter(request)
            case "anthropic", "/v1/models":
                return self._anthropic(request)
            case "fireworks", "/inference/v1/models":
                return self._fireworks()
            case "fireworks", path if path.startswith("/v1/accounts/"):
                return self._fireworks_model(unquote(path.removeprefix("/v1/")))
            case "mantle", "/v1/models" | "/openai/v1/models":
                return _json({"object": "list", "data": [_openai(sold) for sold in self._sold("mantle")]})
            case "bedrock", "/foundation-models":
                return _json({"modelSummaries": self._foundation_models()})
            case "bedrock", "/inference-profiles":
                return self._inference_profiles(request)
            case _:
                return None

    def _sold(self, provider: str) -> list[Sold]:
        return [sold for key, sold in SOLD.items() if sold.provider == provider and key not in self.hidden]

    def _openrouter(self, request: Request) -> Reply:
        start = int(request.parameters.get("offset", 0))
        sold = self._sold("openrouter")
        page = sold[start : start + self.page_size]
        end = start + len(page)
        more = f"/api/v1/models?offset={end}" if end < len(sold) else None
        data = [
            {
                "id": one.model,
                "canonical_slug": one.model,
                "context_length": one.context_tokens,
                "architecture": {
                    "input_modalities": ["text", "image"] if one.reads_images else ["text"],
                    "output_modalities": ["text"],
                },
                "pricing": {"prompt": "0.000005", "completion": "0.000025"},
                "top_provider": {"max_completion_tokens": one.output_tokens_max},
                "supported_parameters": ["tools", "tool_choice", "structured_outputs"],
            }
            for one in page
        ]
        return _json({"data": data, "links": {"next": more}, "total_count": len(sold)})

    def _anthropic(self, request: Request) -> Reply:
        size = int(request.parameters.get("limit", 20))
        if not 1 <= size <= 1000:
            raise invalid("limit: between 1 and 1000")
        sold = self._sold("anthropic")
        after = request.parameters.get("after_id")
        start = 0
        if after is not None:
            start = next((number + 1 for number, one in enumerate(sold) if one.model == after), -1)
            if start < 0:
                raise invalid(f"after_id: {after!r} is unknown")
        page = sold[start : start + min(size, self.page_size)]
        data = []
        for one in page:
            entry: dict[str, Any] = {"id": one.model, "type": "model", "display_name": one.model}
            entry |= {"created_at": "2026-05-01T00:00:00Z", "max_input_tokens": one.context_tokens}
            entry["max_tokens"] = one.output_tokens_max
            if self.has_capabilities:
                entry["capabilities"] = {
                    "image_input": {"supported": one.reads_images},
                    "structured_outputs": {"supported": True},
                    "context_management": {"supported": True, "compact_20260112": {"supported": True}},
                }
            data.append(entry)
        has_more = start + len(page) < len(sold)
        ends = {"first_id": page[0].model, "last_id": page[-1].model} if page else {"first_id": None, "last_id": None}
        return _json({"data": data, "has_more": has_more, **ends})

    def _fireworks(self) -> Reply:
        listed = [one for one in self._sold("fireworks") if self.lists_routers or "/routers/" not in one.model]
        data = [
            {
                **_openai(one),
                "kind": "HF_BASE_MODEL",
                "supports_chat": True,
                "supports_image_input": one.reads_images,
                "supports_tools": True,
                "context_length": one.context_tokens,
            }
            for one in listed
        ]
        return _json({"object": "list", "data": data})

    def _fireworks_model(self, name: str) -> Reply:
        sold = SOLD.get(("fireworks", name))
        if sold is None or ("fireworks", name) in self.hidden or "/models/" not in name:
            raise Refusal(404, f"{name} is not there", code="NOT_FOUND")
        return _json(
            {
                "name": name,
                "state": "READY",
                "supportsImageInput": sold.reads_images,
                "supportsTools": True,
                "supportsServerless": True,
                "contextLength": sold.context_tokens,
            }
        )

    def _foundation_models(self) -> list[dict[str, Any]]:
        known: dict[str, tuple[bool, bool]] = {"example.retired-v1": (True, True)}
        for one in [*self._sold("bedrock"), *self._sold("mantle")]:
            bare = one.model.removeprefix("us.")
            # Claude is there by inference profile alone.
            known[bare] = (one.reads_images, not bare.startswith("anthropic."))
        return [
            {
                "modelArn": f"arn:aws:bedrock:us-east-1::foundation-model/{model}",
                "modelId": model,
                "modelName": model,
                "providerName": model.partition(".")[0],
                "inputModalities": ["TEXT", "IMAGE"] if reads_images else ["TEXT"],
                "outputModalities": ["TEXT"],
                "inferenceTypesSupported": ["ON_DEMAND"] if on_demand else ["INFERENCE_PROFILE"],
                "modelLifecycle": {"status": "LEGACY" if model in self.legacy else "ACTIVE"},
            }
            for model, (reads_images, on_demand) in known.items()
        ]

    def _inference_profiles(self, request: Request) -> Reply:
        profiles = [one.model for one in self._sold("bedrock") if one.model.startswith("us.")]
        start = int(request.parameters.get("nextToken", 0))
        end = start + min(self.page_size, int(request.parameters.get("maxResults", 100)))
        summaries = [
            {
                "inferenceProfileId": name,
                "inferenceProfileArn": f"arn:aws:bedrock:us-east-1:{ACCOUNT}:inference-profile/{name}",
                "inferenceProfileName": name,
                "models": [
                    {"modelArn": f"arn:aws:bedrock:{region}::foundation-model/{name.removeprefix('us.')}"}
                    for region in ("us-east-1", "us-west-2")
                ],
                "status": "ACTIVE",
                "type": "SYSTEM_DEFINED",
            }
            for name in profiles[start:end]
        ]
        body: dict[str, Any] = {"inferenceProfileSummaries": summaries}
        if end < len(profiles):
            body["nextToken"] = str(end)
        return _json(body)


def _openai(sold: Sold) -> dict[str, Any]:
    return {"id": sold.model, "object": "model", "created": 1780000000, "owned_by": "sim"}


def _json(body: dict[str, Any]) -> Reply:
    return Reply(200, orjson.dumps(body), dict(JSON))

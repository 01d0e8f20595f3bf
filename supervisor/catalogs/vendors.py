"""The lists of providers that are asked with a key: OpenAI, OpenRouter, Anthropic, Fireworks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote, urljoin, urlsplit

from contract.profiles import PROFILES
from supervisor.catalogs.entries import Ask, Catalog, CatalogError, ListedModel
from supervisor.catalogs.http import PAGES_MAX, Getter, unreachable

# Fireworks, "Serverless model routing": a Fast router is named after its model. Routers are missing from some lists.
ROUTER_SUFFIX: Final = "-fast"
ANTHROPIC_VERSION: Final = PROFILES["anthropic-messages"].headers["anthropic-version"]


def direct_catalog(ask: Ask, deadline: float) -> Catalog:
    """The whole list of one provider. Raises `CatalogError`."""
    assert ask.url is not None, "providers with keys have an address"
    assert ask.key is not None, "nobody asks without a key"
    secret = ask.key.get_secret_value().strip()
    headers = {"authorization": f"Bearer {secret}"}
    if ask.provider == "anthropic":
        headers = {"x-api-key": secret, "anthropic-version": ANTHROPIC_VERSION}
    getter = Getter(ask.provider, sign=lambda _: headers, secrets=(ask.key,), deadline=deadline)
    match ask.provider:
        case "openrouter":
            return _openrouter(getter, ask.url)
        case "anthropic":
            return _anthropic(getter, ask.url)
        case "fireworks":
            return _fireworks(getter, ask)
        case _:
            items = items_of(ask.provider, ask.url, getter)
            return catalog_of(ask.provider, [ListedModel(item["id"]) for item in items])


def items_of(provider: str, url: str, getter: Getter) -> list[dict[str, Any]]:
    """The entries of a list that comes in one piece, those with an id. Raises `CatalogError`."""
    return _items(provider, url, _object(getter.get(url)))


def catalog_of(provider: str, models: list[ListedModel], aliases: dict[str, str] | None = None) -> Catalog:
    """The catalog of these models, the first one of each id."""
    return Catalog(provider, {listed.model: listed for listed in reversed(models)}, aliases or {})


def _openrouter(getter: Getter, first: str) -> Catalog:
    models = []
    aliases = {}
    for item in _openrouter_items(getter, first):
        modalities = _object(item.get("architecture")).get("input_modalities")
        reads = "image" in modalities if isinstance(modalities, list) else None
        models.append(ListedModel(item["id"], reads_images=reads))
        if isinstance(item.get("canonical_slug"), str):
            aliases[item["canonical_slug"]] = item["id"]
    return catalog_of("openrouter", models, aliases)


def _openrouter_items(getter: Getter, first: str) -> Iterator[dict[str, Any]]:
    url = first
    for _ in range(PAGES_MAX):
        page = _object(getter.get(url))
        yield from _items("openrouter", url, page)
        following = _object(page.get("links")).get("next")
        if not isinstance(following, str) or not following:
            return
        url = urljoin(url, following)
        # The key goes where the operator sends it and nowhere else.
        if urlsplit(url)[:2] != urlsplit(first)[:2]:
            raise _bad("openrouter", first, "its next page is on another host")
    raise _bad("openrouter", first, "its pages do not end")


def _anthropic(getter: Getter, url: str) -> Catalog:
    first = f"{url}?limit=1000"
    url = first
    models = []
    for _ in range(PAGES_MAX):
        page = _object(getter.get(url))
        for item in _items("anthropic", url, page):
            # Older versions of the API do not have it; that says nothing.
            can = _object(_object(item.get("capabilities")).get("image_input")).get("supported")
            models.append(ListedModel(item["id"], reads_images=can if isinstance(can, bool) else None))
        last = page.get("last_id")
        if page.get("has_more") is not True or not isinstance(last, str):
            return catalog_of("anthropic", models)
        url = f"{first}&after_id={quote(last, safe='')}"
    raise _bad("anthropic", first, "its pages do not end")


def _fireworks(getter: Getter, ask: Ask) -> Catalog:
    models = []
    for item in items_of("fireworks", ask.url or "", getter):
        can = item.get("supports_image_input")
        models.append(ListedModel(item["id"], reads_images=can if isinstance(can, bool) else None))
    listed = {model.model for model in models}
    for router in dict.fromkeys(ask.wanted):
        if router not in listed and "/routers/" in router:
            found = _router(getter, ask.control_url, router)
            models += [found] if found is not None else []
    return catalog_of("fireworks", models)


def _router(getter: Getter, control_url: str, router: str) -> ListedModel | None:
    """A router that the list leaves out, by the control plane's word on the model that it leads to."""
    base = router.replace("/routers/", "/models/").removesuffix(ROUTER_SUFFIX)
    found = getter.get(f"{control_url}/{quote(base)}", missing_ok=True)
    if found is None or found.get("supportsServerless") is False:
        return None
    can = found.get("supportsImageInput")
    state = found.get("state")
    return ListedModel(
        router,
        reads_images=can if isinstance(can, bool) else None,
        state=state if isinstance(state, str) and state != "READY" else None,
        base=base,
    )


def _items(provider: str, url: str, page: dict[str, Any]) -> list[dict[str, Any]]:
    items = page.get("data")
    if not isinstance(items, list):
        raise _bad(provider, url, "its answer is not a list of models")
    return [item for item in items if isinstance(item, dict) and isinstance(item.get("id"), str)]


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _bad(provider: str, url: str, reason: str) -> CatalogError:
    return unreachable(provider, urlsplit(url).hostname or "", reason)

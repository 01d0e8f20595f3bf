"""What a vendor's model list says, in the same words for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from pydantic import SecretStr

# Geographies that AWS puts before a model's id to name an inference profile ("Supported cross-region inference
# profiles", Amazon Bedrock user guide, autumn 2026).
GEOGRAPHIES: Final = ("us", "us-gov", "eu", "apac", "jp", "au", "ca", "sa", "mx", "il", "me", "global")


@dataclass(frozen=True, slots=True)
class ListedModel:
    """One line of a list.

    `reads_images` is null where the list does not say. `state` is the vendor's word for a model that is not in use as
    usual (like `LEGACY`), else null. `needs_profile` is true for a model that can be asked through an inference profile
    only. `base` is the model behind an inference profile.
    """

    model: str
    reads_images: bool | None = None
    state: str | None = None
    needs_profile: bool = False
    base: str | None = None


@dataclass(frozen=True, slots=True)
class Catalog:
    """A whole list, by id. `aliases` are further ids that mean one of them."""

    provider: str
    models: Mapping[str, ListedModel] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)

    def find(self, model: str) -> ListedModel | None:
        """The model with exactly this id."""
        return self.models.get(model) or self.models.get(self.aliases.get(model, ""))

    def profiles_of(self, model: str) -> list[str]:
        """The inference profiles that lead to this model."""
        return sorted(listed.model for listed in self.models.values() if listed.base == model)


class CatalogError(Exception):
    """A list could not be had. `code` is the issue's; `hint` an order. Neither it nor the message holds a key."""

    def __init__(self, code: Literal["catalog_unreachable", "catalog_refused"], message: str, hint: str) -> None:
        super().__init__(message)
        self.code: Literal["catalog_unreachable", "catalog_refused"] = code
        self.message = message
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Ask:
    """One list to ask for.

    `url` is the list's own; null means the SDK's address. `control_url` is where Fireworks' control plane starts.
    `wanted` are the configured ids, for lists that leave some out. `key` is for providers that have keys, `region` and
    `aws_profile` are for the others. `is_guess`: the address was derived from another provider's, so no answer there
    means nothing.
    """

    provider: str
    url: str | None
    control_url: str = ""
    key: SecretStr | None = None
    region: str | None = None
    aws_profile: str | None = None
    wanted: tuple[str, ...] = ()
    is_guess: bool = False


def bare_model(model: str) -> str:
    """A Bedrock id without the geography that makes it an inference profile's."""
    head, dot, rest = model.partition(".")
    return rest if dot and head in GEOGRAPHIES else model

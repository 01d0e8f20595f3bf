"""Whether a configured model can play, by the lists: it is there by its exact id, it reads images, it can be asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from contract.profiles import Profile, reads_images
from supervisor.catalogs.entries import Catalog, CatalogError, ListedModel, bare_model
from supervisor.issues import Issue, did_you_mean

ImageSource = Literal["list", "bedrock", "table"]
# What comes of the lists: a whole one, or why there is none, by provider.
Answers = Mapping[str, Catalog | CatalogError]


@dataclass(frozen=True, slots=True)
class Images:
    """Whether a model reads images, null when nobody says; and who says it.

    `list` is the vendor's own list, `bedrock` Bedrock's list for a model of Mantle, `table` a fact that is pinned in
    a profile or in `contract/profiles.py`.
    """

    reads: bool | None
    source: ImageSource | None


def images_of(listed: ListedModel | None, model: str, facts: Profile | None, answers: Answers) -> Images:
    """What the lists say, and only where they are silent, what is pinned."""
    if listed is not None and listed.reads_images is not None:
        return Images(listed.reads_images, "list")
    bedrock = answers.get("bedrock")
    if facts is not None and facts.provider == "mantle" and isinstance(bedrock, Catalog):
        same = bedrock.find(model)
        if same is not None and same.reads_images is not None:
            return Images(same.reads_images, "bedrock")
    pinned = reads_images(facts, model) if facts is not None else None
    return Images(pinned, "table" if pinned is not None else None)


def find(catalog: Catalog, model: str) -> ListedModel | None:
    """The line of this exact id. Where inference profiles may not be listed, that of the model behind one."""
    listed = catalog.find(model)
    if listed is not None or catalog.provider != "bedrock":
        return listed
    are_profiles_listed = any(other.base is not None for other in catalog.models.values())
    base = catalog.find(bare_model(model))
    if are_profiles_listed or base is None or bare_model(model) == model:
        return None
    return ListedModel(model, reads_images=base.reads_images, state=base.state, base=base.model)


def issue_of(
    catalog: Catalog, model: str, facts: Profile, answers: Answers, *, field: str, rollout_id: str
) -> Issue | None:
    """Why this model cannot play, or null."""
    listed = find(catalog, model)
    where = f"the live list of {catalog.provider}"
    if listed is None:
        hint = (
            f"Use an exact id of {where}; `autocad-bench-models` prints it.{did_you_mean(model, list(catalog.models))}"
        )
        return Issue("model_unknown", f"model {model!r} is not in {where}", hint, field, rollout_id)
    if listed.state is not None:
        message = f"model {model!r} is {listed.state} by {where}, not in active use"
        return Issue("model_inactive", message, "Choose a model that its vendor still offers.", field, rollout_id)
    if listed.needs_profile:
        profiles = catalog.profiles_of(model)
        hint = (
            f"Use {' or '.join(repr(name) for name in profiles)}."
            if profiles
            else ("Use the id of an inference profile, which starts with a geography, like `us.`.")
        )
        message = f"model {model!r} can be asked through an inference profile only"
        return Issue("model_needs_profile", message, hint, field, rollout_id)
    images = images_of(listed, model, facts, answers)
    if images.reads:
        return None
    if images.reads is False:
        who = {"list": where, "bedrock": "Bedrock's live list", "table": "its profile"}[images.source or "list"]
        message = f"model {model!r} does not read images, by {who}"
        hint = "Choose a model that reads images; every turn shows the desktop."
    else:
        message = f"nothing says that model {model!r} reads images: neither {where} nor what is known here"
        hint = 'If you know that it does, add a row to `profiles` with `"reads_images": true` and name it in `profile`.'
    return Issue("model_no_image_input", message, hint, field, rollout_id)

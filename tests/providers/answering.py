"""Making answers: what an answer costs, which of the model's words it carries, and the vendor's body around both."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import Any

from tests.providers import chat, converse, messages, responses
from tests.providers.accounts import Account, PromptCache, Used
from tests.providers.models import SOLD
from tests.providers.players import Play
from tests.providers.prompt import Asked

Scope = tuple[str, ...]


@dataclass
class Answering:
    """The side of the providers that remembers prompts and keeps the bill."""

    account: Account = field(default_factory=Account)
    cache: PromptCache = field(default_factory=PromptCache)
    # How many of the next compactions fail.
    failed_compactions: int = 0
    # Mantle leaves the count of cached tokens out for some models.
    mantle_says_cached: bool = True

    def answer(self, asked: Asked, play: Play, number: int) -> tuple[dict[str, Any], list[Used]]:
        """The body of the answer, and the runs that were charged for it. A call that is too long is cut."""
        thought = -(-len(play.thinking.encode()) // 4)
        said = -(-len(play.arguments_text) // 4) if play.arguments is not None else 8
        output = thought + said + 12
        if output > asked.output_tokens_max:
            play, output = replace(play, shape="cut"), asked.output_tokens_max
        reasoning = thought if asked.api in ("responses", "messages") else None
        text = f"{asked.provider}/{asked.session}/{asked.prompt.chain}/{number}"
        name = hashlib.sha256(text.encode()).hexdigest()[:16]
        if asked.api == "messages":
            runs, compaction = self._compacted(asked, name)
            runs[-1] = replace(runs[-1], output=output, reasoning=reasoning)
            self.account.charge(asked.provider, asked.model, asked.session, runs)
            is_cut = compaction is not None and compaction["content"] is not None
            context = "" if is_cut else asked.facts["context"]
            return messages.body_of(asked, play, runs, name=name, context=context, compaction=compaction), runs
        used = replace(self._input(asked), output=output, reasoning=reasoning)
        cost = self.account.charge(asked.provider, asked.model, asked.session, [used])
        if asked.api == "responses":
            cost_usd = None if cost is None else str(cost)
            return responses.body_of(asked, play, used, name=name, cost_usd=cost_usd), [used]
        if asked.api == "chat":
            body = chat.body_of(asked, play, used, name=name, number=number)
            if asked.provider == "mantle" and not self.mantle_says_cached:
                del body["usage"]["prompt_tokens_details"]
            return body, [used]
        return converse.body_of(asked, play, used, name=name), [used]

    def _input(self, asked: Asked) -> Used:
        is_marked = bool(asked.prompt.breakpoints) and (asked.api == "converse" or asked.model.startswith("anthropic/"))
        if not asked.facts["is_sticky"] or (asked.api == "converse" and not is_marked):
            return Used(uncached=asked.prompt.tokens)
        sold, scope = SOLD[asked.provider, asked.model], _scope(asked)
        if is_marked:
            return self.cache.marked(asked.prompt, scope, sold)
        used = self.cache.implicit(asked.prompt, scope, sold)
        if asked.provider == "mantle" and not self.mantle_says_cached:
            return Used(uncached=used.input_total)
        return used

    def _compacted(self, asked: Asked, name: str) -> tuple[list[Used], dict[str, Any] | None]:
        """The runs of a Messages answer, and the compaction block when there was a compaction."""
        sold, scope = SOLD[asked.provider, asked.model], _scope(asked)
        first = self.cache.marked(asked.prompt, scope, sold)
        trigger = asked.facts["trigger"]
        if trigger is None or asked.prompt.tokens <= trigger:
            return [first], None
        if self.failed_compactions:
            self.failed_compactions -= 1
            failed = {"type": "compaction", "content": None, "encrypted_content": None}
            return [replace(first, output=10, reasoning=0), self.cache.marked(asked.prompt, scope, sold)], failed
        block = {"type": "compaction", "content": f"Summary {name}.", "encrypted_content": f"Ec{name}"}
        prompt = asked.prompt.cut_to(asked.facts["head_units"], [messages.summary_unit(block)])
        prompt.mark("5m")
        return [
            replace(first, output=messages.SUMMARY_TOKENS, reasoning=0),
            self.cache.marked(prompt, scope, sold),
        ], block


def _scope(asked: Asked) -> Scope:
    """Who shares cached prefixes: one session, or, where the whole account does, one model."""
    return (asked.provider, asked.model, "" if asked.api == "messages" else asked.session)

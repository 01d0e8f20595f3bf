"""Seeds of tests that are played with chance: a few in `make test`, many in `make e2e`."""

from __future__ import annotations

import pytest
from _pytest.mark import ParameterSet


def few_and_more(few: int, in_all: int) -> list[ParameterSet]:
    """The seeds from 0 up to `in_all`; those from `few` on are end-to-end tests."""
    return [pytest.param(seed, marks=pytest.mark.slow if seed < few else pytest.mark.e2e) for seed in range(in_all)]

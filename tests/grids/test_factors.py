"""Emission factors: the table, its order of magnitude and its refusals."""

from __future__ import annotations

import pytest

from lowtide.errors import UnknownName
from lowtide.grids import EMISSION_FACTORS_G_PER_KWH, emission_factor


def test_lifecycle_medians_are_those_of_ipcc_2014():
    lifecycle = {source: emission_factor(source) for source in EMISSION_FACTORS_G_PER_KWH}
    assert lifecycle == {
        "biomass": 230,
        "coal": 820,
        "gas": 490,
        "hydro": 24,
        "nuclear": 12,
        "solar": 48,
        "wind_offshore": 12,
        "wind_onshore": 11,
    }


def test_only_fossil_plants_have_a_stack_that_counts():
    direct = {
        source: factors["direct"]
        for source, factors in EMISSION_FACTORS_G_PER_KWH.items()
        if factors["direct"]
    }
    assert direct == {"coal": 760, "gas": 370}


def test_direct_never_exceeds_lifecycle():
    for factors in EMISSION_FACTORS_G_PER_KWH.values():
        assert factors["direct"] <= factors["lifecycle"]


def test_the_table_cannot_be_changed():
    with pytest.raises(TypeError):
        EMISSION_FACTORS_G_PER_KWH["coal"]["lifecycle"] = 0.0  # type: ignore[index]


def test_unknown_names_list_the_known():
    with pytest.raises(UnknownName, match="did you mean 'coal'"):
        emission_factor("coall")
    with pytest.raises(UnknownName, match="known are direct, lifecycle"):
        emission_factor("coal", basis="total")

"""What a kilowatt-hour from each source emits.

The numbers are the medians of table A.III.2 in Annex III of the IPCC's fifth assessment report,
working group III (Schlömer et al., 2014). `lifecycle` counts building, fuel supply, methane and
infrastructure as well as burning; `direct` counts the stack alone.

Two rows of that table need a choice. Biomass has no direct value there, because its stack's CO₂
is booked where the plants grew; here it is 0, as greenhouse gas inventories report it. Gas is
combined cycle and coal is pulverised coal; other plants of the same fuel scale with the fuel they
burn, see `Plant.heat_rate` in `lowtide.grids.models`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from lowtide.errors import UnknownName
from lowtide.signal import BASES

#: Source → basis → g CO₂ equivalent per kWh.
EMISSION_FACTORS_G_PER_KWH: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        source: MappingProxyType({"lifecycle": lifecycle, "direct": direct})
        for source, lifecycle, direct in (
            ("biomass", 230.0, 0.0),
            ("coal", 820.0, 760.0),
            ("gas", 490.0, 370.0),
            ("hydro", 24.0, 0.0),
            ("nuclear", 12.0, 0.0),
            ("solar", 48.0, 0.0),
            ("wind_offshore", 12.0, 0.0),
            ("wind_onshore", 11.0, 0.0),
        )
    }
)


def emission_factor(source: str, *, basis: str = "lifecycle") -> float:
    """Return the grams of CO₂ equivalent that one kilowatt-hour from a source emits.

    Args:
        source: A key of `EMISSION_FACTORS_G_PER_KWH`.
        basis: `lifecycle` or `direct`.

    >>> emission_factor("gas"), emission_factor("gas", basis="direct")
    (490.0, 370.0)
    """
    if source not in EMISSION_FACTORS_G_PER_KWH:
        raise UnknownName("source of electricity", source, EMISSION_FACTORS_G_PER_KWH)
    if basis not in BASES:
        raise UnknownName("basis", basis, BASES)
    return EMISSION_FACTORS_G_PER_KWH[source][basis]

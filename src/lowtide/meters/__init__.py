"""Where watts come from: a file per kind of meter."""

from lowtide.meters.meter import METERS, Channel, Found, Meter, Reading, Roots

__all__ = ["METERS", "Channel", "Found", "Meter", "Reading", "Roots"]

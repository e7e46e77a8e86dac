"""Profiles of the programs that run anyway, learned from what was watched, and kept by name."""

from lowtide.library.entry import Entry, Expectation
from lowtide.library.folder import Library
from lowtide.library.production import Harvest, learn_from

__all__ = ["Entry", "Expectation", "Harvest", "Library", "learn_from"]

"""Power profiles from measured runs: phases, alignment, repetition, validation."""

from lowtide.learning.checking import check
from lowtide.learning.learned import Learned, learn

__all__ = ["Learned", "check", "learn"]

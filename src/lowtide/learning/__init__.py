"""Power profiles from measured runs, and power from utilisation, each with its validation."""

from lowtide.learning.checking import check
from lowtide.learning.learned import Learned, learn

__all__ = ["Learned", "check", "learn"]

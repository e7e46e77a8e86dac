"""Looking back at a job: what it had, used, drew and emitted, and what waiting would have saved."""

from lowtide.hindsight.job import Hindsight, look_back

__all__ = ["Hindsight", "look_back"]

"""Running a program and writing down what it draws."""

from lowtide.measuring.recorder import Recorder, Step
from lowtide.measuring.sampler import Sampler, choose_meters

__all__ = ["Recorder", "Sampler", "Step", "choose_meters"]

"""Running a program and writing down what it draws."""

from lowtide.measuring.recorder import Recorder
from lowtide.measuring.sampler import Sampler
from lowtide.measuring.steps import Step

__all__ = ["Recorder", "Sampler", "Step"]

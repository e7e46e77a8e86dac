"""Running a program and writing down what it draws."""

from lowtide.measuring.callbacks import Step
from lowtide.measuring.recorder import Recorder
from lowtide.measuring.sampler import Sampler

__all__ = ["Recorder", "Sampler", "Step"]

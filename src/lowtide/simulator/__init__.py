"""Many jobs at once: machines, queues, and what came of it."""

from lowtide.simulator.cluster import Cluster
from lowtide.simulator.disciplines import make_discipline
from lowtide.simulator.results import Simulation
from lowtide.simulator.simulation import simulate

__all__ = ["Cluster", "Simulation", "make_discipline", "simulate"]

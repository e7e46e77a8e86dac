"""What Slurm knows of its jobs."""

from lowtide.slurm.client import SlurmClient

__all__ = ["SlurmClient"]

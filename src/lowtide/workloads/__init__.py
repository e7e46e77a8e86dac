"""Jobs to simulate, from a plain table: drawn by chance from a seed, or read from a trace."""

from __future__ import annotations

from lowtide.workloads.generate import TraceSpec, WorkloadSpec, generate, read_spec

__all__ = ["TraceSpec", "WorkloadSpec", "generate", "read_spec"]

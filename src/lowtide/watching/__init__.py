"""Watching a node: what every job on it uses, draws and emits, from the first second."""

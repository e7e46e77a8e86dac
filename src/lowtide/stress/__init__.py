"""Loading a machine by plan: levels of CPU, memory, disk and GPU that depend on nothing but a seed.

Nothing is imported here: every worker process of a load passes through this file.
"""

"""Carrying plans out: jobs that wait for clean hours, and a promise that holds without us."""

"""Deciding for one job when it runs: published policies, and the best there can be."""

from lowtide.policies.planning import Plan, plan
from lowtide.policies.policy import POLICIES, Decision, Policy

__all__ = ["POLICIES", "Decision", "Plan", "Policy", "plan"]

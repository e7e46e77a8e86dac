"""Many jobs, few machines: a queue planned together, with prices and a proof."""

from lowtide.market.cluster_plan import ClusterPlan
from lowtide.market.planning import plan_cluster

__all__ = ["ClusterPlan", "plan_cluster"]

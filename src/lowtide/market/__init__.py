"""Many jobs, few machines: a queue planned together, with prices and a proof."""

from lowtide.market.by_hour import ElasticPlan, plan_elastic
from lowtide.market.cluster_plan import ClusterPlan
from lowtide.market.joining import Site
from lowtide.market.planning import plan_cluster
from lowtide.market.sites import SitesPlan, plan_sites

__all__ = [
    "ClusterPlan",
    "ElasticPlan",
    "Site",
    "SitesPlan",
    "plan_cluster",
    "plan_elastic",
    "plan_sites",
]

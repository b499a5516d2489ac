"""Ray: rows of a dataset mapped over actors, each with a package of its own open (extra ``ray``)."""

from estream.integrations.ray.pool import Pool, map_dataset

__all__ = ["Pool", "map_dataset"]

"""Servers of crossdraft as replicas of Ray Serve: `serve run crossdraft_ray.deployment:application`; docs/ray.md."""

__version__ = "0.1.0"

"""Credentials of people towards upstreams: kept sealed, renewed ahead of time, used for their owner alone."""

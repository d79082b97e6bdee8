"""Users' credentials for upstreams: encrypted at rest, renewed before they expire, used only for their owner."""

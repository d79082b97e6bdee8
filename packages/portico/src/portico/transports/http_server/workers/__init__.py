"""Many processes that are one server to their clients."""

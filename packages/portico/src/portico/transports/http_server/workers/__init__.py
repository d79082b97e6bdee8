"""Multiple worker processes that act as one server."""

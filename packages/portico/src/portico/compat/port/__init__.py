"""A project that was written for FastMCP or the official SDK, rewritten for Portico. No code of it is run."""

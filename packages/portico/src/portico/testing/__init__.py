"""Testing tools for servers: a pytest plugin, available wherever Portico is installed."""

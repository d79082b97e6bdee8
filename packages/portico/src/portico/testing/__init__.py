"""For the tests of servers: a plugin of pytest, which is there wherever Portico is installed."""

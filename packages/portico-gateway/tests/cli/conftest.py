"""Fixtures that run the command line."""

from support.cli import gate, liar, portico, server, shell, surroundings, terminal, url

__all__ = ["gate", "liar", "portico", "server", "shell", "surroundings", "terminal", "url"]

"""Codemod that rewrites a project from FastMCP or the official SDK to Portico. No code of the project is run."""

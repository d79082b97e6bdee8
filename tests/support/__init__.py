"""Helpers for the tests of all packages."""

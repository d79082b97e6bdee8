"""Bounded results: large tool results are shortened, stored and linked."""

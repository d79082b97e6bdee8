"""Tool search and text analysis: an index of tools, stemming, synonyms and near names.

Each name is imported when it is first used.
"""

from portico._lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__)

"""Who is asking. The names below are for clients that log in, and for servers that let them in: each is imported when
it is first used.
"""

from portico._lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__)

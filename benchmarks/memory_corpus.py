"""Generate an unlimited number of distinct texts, and queries about them.

A template of a note, a decision or a turn of a conversation is filled with words that are drawn as often as they occur
in the documentation that Python brings with it, and with names, versions and paths of its own.
"""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from collections.abc import Iterator
from pydoc_data.topics import topics

from portico.search.text import STOPWORDS
from portico_services.memory.store.capture import MemoryDraft
from portico_services.memory.store.namespaces import WRITABLE_NAMESPACES

PROJECTS = 10
TEMPLATES = (
    "We decided to use {} for the {} because the {} of {} was too {}, and {} needs {} by {}.",
    "{}: when the {} is {}, the {} returns {} instead of {}. See {} and the {} in {}.",
    "I spent the {} with {} yesterday, we looked at the {} and talked about {} {}. It was quite {}!",
    "The {} in {} must not {} before {}; otherwise {} loses the {} of every {}, which happened on {}.",
    "Note on {}: {} {} {} with {}, measured at {} on the {} machine.",
    "Have you seen how {} handles {}? I think the {} {} is what makes {} so {}, and {} agrees.",
    "Fixed {} by moving {} out of the {}: the {} was read twice while {} was {}, so {} came too late.",
)
QUESTIONS = (
    "What did we decide about the {} of {} {}?",
    "Where is the {} {} that {} needs?",
    "Why was {} {} when we looked at {} and {}?",
    "How does {} handle {} {}?",
)


class Corpus:
    def __init__(self, seed: int = 7) -> None:
        counts = Counter(re.findall(r"[a-z]{3,}", " ".join(topics.values()).lower()))
        self._words = [word for word in counts if word not in STOPWORDS]
        self._often = list(itertools.accumulate(counts[word] for word in self._words))
        self._random = random.Random(seed)

    def drafts(self, count: int) -> Iterator[MemoryDraft]:
        """Yield drafts in ten projects and all namespaces; two fifths without thread and author."""
        for number in range(count):
            author = self._random.choice(("Ann", "Ben", "Cleo", None, None))
            yield MemoryDraft(
                content=self.text(),
                namespace=WRITABLE_NAMESPACES[number // PROJECTS % len(WRITABLE_NAMESPACES)],
                project=f"project-{number % PROJECTS}",
                author=author,
                thread=f"t{number // 200}" if author else None,
            )

    def text(self) -> str:
        template = self._random.choice(TEMPLATES)
        slots = template.count("{}")
        words = self._random.choices(self._words, cum_weights=self._often, k=slots)
        rare = self._random.randrange(slots)
        words[rare] = self._random.choice(
            (
                f"v{self._random.randrange(9)}.{self._random.randrange(40)}",
                f"src/{words[rare]}_{words[rare - 1]}.py",
                f"{words[rare].title()}{self._random.randrange(1000)}",
                f"#{self._random.randrange(20000)}",
            )
        )
        return template.format(*words)

    def question(self, text: str) -> str:
        """Return a query with some words of a text."""
        template = self._random.choice(QUESTIONS)
        known_items = [word for word in re.findall(r"[a-z]{3,}", text.lower()) if word not in STOPWORDS]
        chosen = self._random.sample(known_items, min(len(known_items), template.count("{}")))
        return template.format(*chosen, "it", "it", "it")

# Public names, and the modules that define them. `portico._lazy.attach_stub` reads this file at run time.
from portico.search.fuzzy_names import FuzzyNames as FuzzyNames
from portico.search.synonyms import find_synonyms as find_synonyms
from portico.search.text import (
    STOPWORDS as STOPWORDS,
    split_camel_case as split_camel_case,
    stem as stem,
    tokenize_words as tokenize_words,
    word_set as word_set,
)
from portico.search.tool_index import ToolDocument as ToolDocument, ToolIndex as ToolIndex
from portico.search.tool_search import ToolSearchServer as ToolSearchServer, add_find_tools as add_find_tools
from portico.search.tool_search_base import ToolSearchBase as ToolSearchBase

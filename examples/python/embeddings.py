"""Text embeddings of torch in an index of hnswlib.

Passages are embedded in batches on the device of the model; the index is built where it pays, and
served by hnswlib. `Model` stands for yours: anything that returns a tensor.
"""

import argparse
import tempfile
import time
from pathlib import Path

import hnswlib
import tagore_ann
import torch


class Model(torch.nn.Module):  # type: ignore[misc]
    """Mean of word vectors: a model without a download."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = torch.nn.EmbeddingBag(1 << 16, dim, mode="mean")

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def encode(self, texts: list[str]) -> torch.Tensor:
        """Unit vectors, shape (texts, dim)."""
        words = [[hash(word) % (1 << 16) for word in text.split()] for text in texts]
        ends = torch.tensor([0] + [len(row) for row in words[:-1]]).cumsum(0)
        flat = torch.tensor([word for row in words for word in row])
        device = self.words.weight.device
        return torch.nn.functional.normalize(self.words(flat.to(device), ends.to(device)))


def passages(count: int) -> list[str]:
    """Made passages of 40 words about a topic each."""
    generator = torch.Generator().manual_seed(1)
    topics = torch.randint(0, 2000, (count,), generator=generator)
    drawn = torch.randint(0, 60, (count, 40), generator=generator)
    return [" ".join(f"w{int(t) * 40 + int(w)}" for w in row) for t, row in zip(topics, drawn, strict=True)]


def main() -> None:
    """Embeds, builds, exports, and answers a question with hnswlib."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passages", type=int, default=200_000)
    parser.add_argument("--dim", type=int, default=384)
    options = parser.parse_args()

    texts = passages(options.passages)
    model = Model(options.dim).to("cuda" if torch.cuda.is_available() else "cpu")
    batches = [model.encode(texts[first : first + 4096]).half() for first in range(0, len(texts), 4096)]
    # The index is built from host memory, which DLPack lends without a copy.
    embeddings = torch.cat(batches).cpu()

    began = time.perf_counter()
    index = tagore_ann.build(embeddings, "nssg", "cosine")
    print(f"{len(index):,} x {index.dim} {index.dtype}: built in {time.perf_counter() - began:.1f} s")

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "passages.hnswlib")
        index.to("hnswlib", path)
        served = hnswlib.Index(space="cosine", dim=index.dim)
        served.load_index(str(path))
    served.set_ef(100)
    question = model.encode([texts[123]]).float().cpu().numpy()
    [labels], _ = served.knn_query(question, k=5)
    for label in labels:
        print(f"passage {label}: {texts[label][:60]}")


if __name__ == "__main__":
    main()

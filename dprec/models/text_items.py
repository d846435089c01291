"""A Transformer over items that are described by public text, so that it also ranks items new after training."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dprec.data.logs.ids import digest_of
from dprec.data.text_log import Pretrained, words_of
from dprec.errors import UserError
from dprec.models.items.features import file_of_items, lines_of_items
from dprec.models.learning.learner import refuse_unless
from dprec.models.text_classifier import pretrained
from dprec.models.transformer import Transformer


class TextItems(Transformer):
    """The Transformer, with a trained map of texts' vectors in place of the table of items.

    Use it if items are new or rare: an item of the catalogue is ranked by its text, even if no user had it. The texts'
    vectors are computed once, before training, and do not change. The same map is used to read items and to score
    them.

    Args:
        items: number of item ids, the padding included. Comes from the data.
        text_file: a public CSV file with a column `item` and columns of text.
        text_columns: the columns of text, which are joined in this order.
        dim: width of items and hidden vectors.
        text_dim: width of a text's vector; an encoder's is projected to the directions in which items differ most.
        encoder: a folder with an encoder and its tokenizer, as `save_pretrained` of transformers wrote them; null for a
            bag of the text's words. Its weights count as public.
        own: each item also gets its own trained vector, which starts at 0 and gets noise like all parameters.
        options: arguments of `Transformer`.

    Training reads the file when it begins; this example reads it directly:

    >>> import tempfile
    >>> from pathlib import Path
    >>> import torch
    >>> from dprec import TextItems
    >>> from dprec.data import SequenceBatch
    >>> file = Path(tempfile.mkdtemp(), "films.csv")
    >>> _ = file.write_text("item,title\\n7,a quiet road\\n12,the long road\\n")
    >>> model = TextItems(items=3, text_file=str(file), text_columns=["title"], dim=4, text_dim=2)
    >>> model.embedding.read_texts(str(file), ["title"], ["7", "12"], None)
    >>> model.losses(SequenceBatch(history=torch.tensor([[1, 2]]), targets=torch.tensor([[2, 1]]))).shape
    torch.Size([1])
    """

    embedding: Any  # ItemsOfText; other models have a table

    def __init__(
        self,
        items: int,
        text_file: str,
        text_columns: list[str],
        dim: int = 64,
        text_dim: int = 128,
        encoder: str | None = None,
        own: bool = False,
        **options: Any,
    ) -> None:
        for name in ("features", "feature_file", "memory_map"):
            if options.get(name) is not None:
                raise UserError(f"model.{name} is for tables of items, which TextItems has none of: leave it out")
        if not options.get("tied", True):
            raise UserError("model.tied: TextItems reads and scores items with the same map; leave it out")
        refuse_unless(text_dim >= 1, "text_dim", text_dim)
        if not text_columns:
            raise UserError("model.text_columns is empty: give the columns of model.text_file that hold text")
        self.text_dim, self.own = text_dim, own  # before the base, which makes the items' vectors
        super().__init__(items, dim, **options)
        self.text_file, self.text_columns, self.text_encoder = text_file, text_columns, encoder

    def make_embedding(self, dim: int, std: float) -> Any:
        return ItemsOfText(self.items, dim, self.text_dim, self.own)

    @classmethod
    def check_files(cls, arguments: Mapping[str, Any]) -> None:
        file, columns = arguments.get("text_file"), arguments.get("text_columns")
        if file is not None and columns:
            file_of_items(file, "model.text_file", columns)

    def setup(self, stage: str) -> None:
        super().setup(stage)
        if stage == "fit":
            ids = self.item_ids_for("text_file")
            self.embedding.read_texts(self.text_file, self.text_columns, ids, self.text_encoder)

    @property
    def assumptions(self) -> Sequence[str]:
        encoder = [] if self.text_encoder is None else [f"the encoder {self.text_encoder}"]
        return [*super().assumptions, f"the texts of items in {self.text_file}", *encoder]

    @property
    def item_table(self) -> Tensor:
        table: Tensor = self.embedding.table
        return table

    def shared_rows(self) -> Iterable[tuple[Tensor, Tensor]]:
        own = self.embedding.own
        if self.shared_negatives is None or own is None:
            return ()
        return [(own.weight, self.shared_negatives.of(self.global_step))]


# Vectors of items from public text, such as a film's title and genres. They are computed once, and not trained.


AT_ONCE = 64  # texts that an encoder reads together


class ItemsOfText(nn.Module):
    """Items' vectors: a trained map of their texts' vectors, optionally plus a trained vector of each item.

    >>> items = ItemsOfText(items=4, dim=2, width=8, own=False).eval()
    >>> items(torch.tensor([[1, 0]])).shape, items.table.shape
    (torch.Size([1, 2, 2]), torch.Size([4, 2]))
    """

    def __init__(self, items: int, dim: int, width: int, own: bool) -> None:
        super().__init__()
        self.read = False
        self.vectors: Tensor  # zero for the padding and for items without text
        self.register_buffer("vectors", torch.zeros(items, width))
        self.map = nn.Parameter(nn.init.orthogonal_(torch.empty(dim, width)))
        self.own = nn.Embedding(items, dim, padding_idx=0) if own else None
        if self.own is not None:
            nn.init.zeros_(self.own.weight)

    def read_texts(
        self, file: str, columns: Sequence[str], item_ids: Sequence[str], encoder: str | None = None
    ) -> None:
        """Set the vectors of the items 1, 2, ... from a CSV file with a column `item`."""
        given, known = lines_of_items(file, "model.text_file", columns, item_ids)
        texts = [" ".join(text.replace("|", " ") for text in row if text) for row in given.select(columns).rows()]
        known = [(place, line) for place, line in known if texts[line].strip()]
        if not known:
            raise UserError(f"model.text_file {file}: no item has text in {', '.join(columns)}: give other columns")
        if len(known) < len(item_ids):
            without = f"{len(item_ids) - len(known):,} of {len(item_ids):,} items have no text there"
            warnings.warn(f"model.text_file {file}: {without}, and their texts' vectors are 0", stacklevel=2)
        texts = [texts[line] for _, line in known]
        found = bags(texts, self.vectors.shape[1]) if encoder is None else encoded(texts, encoder)
        found = narrowed(found - found.mean(0), self.vectors.shape[1])
        self.vectors.zero_()[[place for place, _ in known], : found.shape[1]] = F.normalize(found, dim=1).to(
            self.vectors
        )
        self.read = True

    def forward(self, ids: Tensor) -> Tensor:
        if self.training and not self.read:
            raise UserError("the items' texts have not been read: call model.embedding.read_texts(...) first")
        items = F.linear(F.embedding(ids, self.vectors), self.map)
        return items if self.own is None else items + self.own(ids)

    @property
    def table(self) -> Tensor:
        """The items' vectors, computed from parameters, so that rounding in a softmax over them counts as a user's."""
        mapped = F.linear(self.vectors, self.map)
        return mapped if self.own is None else mapped + self.own.weight


def bags(texts: Sequence[str], width: int) -> Tensor:
    """Return the weighted sum of each text's word vectors (n, width): rare words have larger weights.

    A word's vector is random numbers that depend on the word alone, so no list of words is kept.

    >>> a, b, c = bags(["red wine", "red fish", "dry wit"], 512)
    >>> bool(a @ b > a @ c)
    True
    """
    words = [sorted(set(words_of(text))) for text in texts]
    counts = Counter(word for own in words for word in own)
    rows = {word: row for row, word in enumerate(sorted(counts))}
    vectors = np.empty((len(rows), width), dtype=np.float32)
    for word, row in rows.items():
        numbers = np.random.Generator(np.random.Philox(key=digest_of(word))).standard_normal(width, dtype=np.float32)
        vectors[row] = np.log1p(len(texts) / counts[word]) * numbers
    return torch.from_numpy(np.stack([vectors[[rows[word] for word in own]].sum(0) for own in words]))


def encoded(texts: Sequence[str], folder: str) -> Tensor:
    """Return the mean over each text's tokens (n, r) of an encoder's last layer, without training it."""
    if not Path(folder).is_dir():
        raise UserError(f"model.encoder {folder} is no folder: give one that save_pretrained wrote, with its tokenizer")
    encoder, tokenizer = pretrained("AutoModel", folder).eval(), Pretrained(folder, "model.encoder", "").own
    found = []
    with torch.no_grad():
        for start in range(0, len(texts), AT_ONCE):
            read = tokenizer(list(texts[start : start + AT_ONCE]), return_tensors="pt", padding=True, truncation=True)
            states = encoder(**read).last_hidden_state  # (n, T, r)
            mask = read["attention_mask"].unsqueeze(-1)
            found.append((states * mask).sum(1) / mask.sum(1))
    return torch.cat(found)


def narrowed(vectors: Tensor, width: int) -> Tensor:
    """Project vectors (n, r) to the `width` directions in which they differ most, if r is larger."""
    if vectors.shape[1] <= width:
        return vectors
    directions = torch.linalg.svd(vectors, full_matrices=False).Vh[:width]
    return vectors @ directions.T

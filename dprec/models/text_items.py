"""A Transformer over items that are described by public text, so that it ranks items that nobody met in training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from dprec.errors import UserError
from dprec.models.items.features import file_of_items
from dprec.models.items.texts import ItemsOfText
from dprec.models.learning.learner import refuse_unless
from dprec.models.transformer import Transformer


class TextItems(Transformer):
    """The Transformer, with a trained map of texts' vectors in place of the table of items.

    Use it where items are new, or rare: an item of the catalogue is ranked by its text, whether or not anybody met it.
    The texts' vectors are computed once, before training, and stay as they are. The map is the same where items are
    read and where they are scored.

    Args:
        items: number of item ids, the padding included. Comes from the data.
        text_file: a public CSV file with a column `item` and columns of text.
        text_columns: the columns of text, which are read one after the other.
        dim: width of items and hidden vectors.
        text_dim: numbers of a text's vector; of an encoder's, the directions in which the items differ most.
        encoder: a folder with an encoder and its tokenizer, as `save_pretrained` of transformers wrote them; null for a
            bag of the text's words. Its weights count as public.
        own: each item also gets a vector of its own, which is trained, starts at 0, and gets noise as all others.
        options: arguments of `Transformer`.

    Training reads the file when it begins; here it is read by hand:

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

    embedding: Any  # ItemsOfText, where other models have a table

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

"""What every recommender is: losses for training, scores for ranking, and one optimizer step per batch of users.

There is no privacy code in a model. A model is trained through its `gradient`, which by default is the plain
one; the `Privacy` callback puts the private one in its place.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from dprec.data.batch import RankingBatch, SequenceBatch
from dprec.data.histories import Histories
from dprec.errors import UserError
from dprec.metrics import RankingMetrics
from dprec.models.gradient import GradientRule, MeanGradient
from dprec.models.negatives import Negatives, item_loss
from dprec.privacy.release import ExactSums, Release
from dprec_kernels import catalogue_softmax


class Recommender(pl.LightningModule):
    """Base of all models. A subclass gives `losses` and `scores`; everything else follows.

    Item ids run from 1; id 0 is padding, so a table of items has `items` rows of which row 0 means nothing.

    Args:
        items: number of item ids, the padding included. Comes from the data.
        max_length: most recent items a history is cut to. Comes from the data.
        learning_rate: the highest of the schedule.
        weight_decay: L2 penalty, decoupled for adamw.
        warmup: share of the steps over which the learning rate rises; it falls linearly to 0 over the rest.
        optimizer: adam, adamw or sgd. Override `configure_optimizers` for anything else.
    """

    def __init__(
        self,
        items: int,
        max_length: int = 200,
        learning_rate: float = 1e-3,
        weight_decay: float = 1e-5,
        warmup: float = 0.2,
        optimizer: Literal["adam", "adamw", "sgd"] = "adam",
    ) -> None:
        super().__init__()
        for name, value, fits in (
            ("max_length", max_length, max_length >= 1),
            ("learning_rate", learning_rate, 0 < learning_rate < float("inf")),
            ("weight_decay", weight_decay, 0 <= weight_decay < float("inf")),
            ("warmup", warmup, 0 <= warmup <= 1),
        ):
            refuse_unless(fits, name, value)
        self.automatic_optimization = False  # one step is one batch of users, however many micro-batches it has
        self.items = items
        self.max_length = max_length
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.warmup = warmup
        self.optimizer = optimizer
        self.gradient: GradientRule = MeanGradient()
        self.sums = ExactSums()
        self.noise_to_batch = 0.0  # standard deviation of the noise in each entry of a step's gradient
        self.ranking = RankingMetrics(k=10)

    @abstractmethod
    def losses(self, batch: SequenceBatch) -> Tensor:
        """Return one loss per user (B,); entry u depends on row u of the batch alone."""

    @abstractmethod
    def scores(self, batch: RankingBatch) -> Tensor:
        """Return a score for every item id (B, items); column 0 is ignored."""

    def training_step(self, batch: Sequence[SequenceBatch], batch_idx: int) -> None:
        """Take one optimizer step on one batch of users, given in micro-batches; none at all is a step too."""
        parameters = {name: p for name, p in self.named_parameters() if p.requires_grad}
        loss = self.gradient(parameters, self.losses, batch)
        optimizer: Any = self.optimizers()
        optimizer.step()
        schedule: Any = self.lr_schedulers()
        if schedule is not None:
            schedule.step()
        if loss is not None:
            self.log("loss_not_private", loss, prog_bar=True, batch_size=1)

    @property
    def releases(self) -> tuple[Release, ...]:
        """The sums over all users that `prepare` will ask for, each once; planned before anything is looked at."""
        return ()

    def prepare(self, histories: Histories, sums: ExactSums) -> None:
        """Fill the model from `sums` of the training histories before the first step of a run."""

    def on_train_start(self) -> None:
        """Make Lightning stop at the planned number of steps, wherever in an epoch that falls."""
        self.trainer.fit_loop.epoch_loop.max_steps = self.total_steps
        batches = getattr(self.trainer.train_dataloader, "batch_sampler", None)
        if batches is not None and hasattr(batches, "step"):
            batches.step = self.global_step  # a resumed run draws on, where draws are repeatable at all
        if self.releases and self.global_step == 0:
            data: Any = getattr(self.trainer, "datamodule", None)
            if data is None:
                raise UserError(
                    f"{type(self).__name__} looks at all histories before training: fit it with a datamodule"
                )
            self.prepare(data.training, self.sums)

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run."""
        limit = self.trainer.max_steps
        batches = getattr(getattr(self.trainer, "datamodule", None), "batches", None)
        epochs = self.trainer.max_epochs
        if epochs is None or epochs < 0:
            if limit < 0:
                raise UserError("the run has no end: give trainer.max_epochs or trainer.max_steps")
            return limit
        steps = batches.steps(epochs) if batches is not None else int(self.trainer.estimated_stepping_batches)
        return min(limit, steps) if limit >= 0 else steps

    def configure_optimizers(self) -> Any:
        kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
        if self.optimizer not in kinds:
            raise UserError(f"model.optimizer is '{self.optimizer}'; use {', '.join(kinds)}")
        # Fused: one pass over each table, without scratch of the table's size.
        optimizer = kinds[self.optimizer](
            self.parameters(), lr=self.learning_rate, weight_decay=self.weight_decay, fused=True
        )
        return {"optimizer": optimizer, "lr_scheduler": LambdaLR(optimizer, self._rate_factor)}

    def _rate_factor(self, step: int) -> float:
        total = self.total_steps
        rising = round(self.warmup * total)
        if step < rising:
            return (step + 1) / rising
        return max(0.0, (total - step) / max(1, total - rising))

    def validation_step(self, batch: RankingBatch, batch_idx: int) -> None:
        self.ranking.update(self.scores(batch), batch.target, batch.seen)

    def on_validation_epoch_end(self) -> None:
        self.log_dict({name: value.float() for name, value in self.ranking.compute().items()})
        self.ranking.reset()

    def test_step(self, batch: RankingBatch, batch_idx: int) -> None:
        self.validation_step(batch, batch_idx)

    def on_test_epoch_end(self) -> None:
        self.on_validation_epoch_end()


def refuse_unless(fits: bool, name: str, value: object) -> None:
    """Say in one line that an argument of a model makes no sense."""
    if not fits:
        raise UserError(f"model.{name} is {value}: that makes no model, give another")


class SequenceRecommender(Recommender):
    """A recommender that reads a history in order and predicts what follows each position.

    A subclass gives `encode`; items are scored by the inner product with `item_table`, which is also what it
    reads its input from (tied), unless the subclass returns another table.

    Args:
        negatives: what the softmax of the loss runs over beside the target: null for all items, a number of items
            drawn anew at each step for all users alike, or in-batch for the users' targets (never with privacy).

    >>> class LastItem(SequenceRecommender):
    ...     def encode(self, history: Tensor) -> Tensor:
    ...         return self.embedding(history)
    >>> model = LastItem(items=101, dim=8)
    >>> model.losses(SequenceBatch(torch.tensor([[5, 7]]), torch.tensor([[7, 9]]))).shape
    torch.Size([1])
    """

    def __init__(
        self,
        items: int,
        dim: int = 64,
        embedding_std: float = 0.1,
        negatives: Negatives = None,
        **options: Any,
    ) -> None:
        super().__init__(items, **options)
        refuse_unless(dim >= 1, "dim", dim)
        self.negatives = negatives
        self._sampled_loss = item_loss(negatives, items)
        self.embedding = nn.Embedding(items, dim, padding_idx=0)
        with torch.no_grad():
            self.embedding.weight.normal_(0.0, embedding_std)[0] = 0.0

    @abstractmethod
    def encode(self, history: Tensor) -> Tensor:
        """Return what each position (B, T) has seen so far, itself included: (B, T, d)."""

    @property
    def item_table(self) -> Tensor:
        """The items' output vectors (items, d)."""
        return self.embedding.weight

    @property
    def mixes_users(self) -> str | None:
        """Why a user's loss depends on others, None where it does not: `Privacy` refuses such a model."""
        if self.negatives != "in-batch":
            return None
        return (
            "with model.negatives in-batch a user's gradient depends on who else is in the batch, "
            "so clipping bounds nobody; give a number of shared negatives"
        )

    def losses(self, batch: SequenceBatch) -> Tensor:
        """Return each user's mean cross-entropy over all items, or over `negatives`; 0 for a user without targets."""
        encoded = self.encode(batch.history)
        if encoded.shape[:-1] != batch.targets.shape:
            raise UserError(
                f"{type(self).__name__}.encode returned {tuple(encoded.shape)} for a history of "
                f"{tuple(batch.history.shape)}: return one vector for every position, (B, T, dim)"
            )
        if self._sampled_loss is None:
            loss = catalogue_softmax(encoded, self.item_table, batch.targets)  # (B, T)
        else:
            loss = self._sampled_loss(encoded, self.item_table, batch.targets, self.global_step)
        return loss.sum(1) / (batch.targets != 0).sum(1).clamp(min=1)

    def scores(self, batch: RankingBatch) -> Tensor:
        last = (batch.history != 0).sum(1).clamp(min=1) - 1
        encoded = self.encode(batch.history)
        return encoded[torch.arange(len(last), device=last.device), last] @ self.item_table.T

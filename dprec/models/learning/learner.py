"""The base of every model: an ordinary LightningModule, with one loss per user or record for training.

A model has no privacy code. The `Privacy` callback makes each step's gradient from the same `losses`.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from dprec.accounting.release import ExactSums, Release
from dprec.accounting.terms import Terms, terms_of
from dprec.contract import Losses
from dprec.data.draws.length import draw_from, steps_of
from dprec.distributed.ranks import ALONE, Ranks, deal
from dprec.distributed.replicas import begin_alike, leave_to_the_step, ranks_of
from dprec.errors import UserError
from dprec.gradients.parameters import trained_parameters
from dprec.lightning import LightningModule
from dprec.metrics.metric import Metric
from dprec.models.learning import optimizers
from dprec.models.learning.kept import arguments_of, kept_of, plain
from dprec_kernels.file_tensor import in_file


class Learner(LightningModule):
    """Base of all models. A subclass writes `losses` for training and `measure` for evaluation.

    It has the optimizer, the schedule of the learning rate and the logging of metrics, so that recipes set them in the
    same way for every model. Subclass it directly for a model that is neither a recommender nor a click model.
    `from_data` names the arguments that the data decides, and for each, what to set instead.

    Args:
        learning_rate: the highest of the schedule.
        weight_decay: L2 penalty, decoupled for adamw.
        warmup: share of the steps over which the learning rate rises; it falls linearly over the rest.
        final_rate: the share of the learning rate that remains at the end; 1 keeps it, for averaged weights.
        optimizer: adam, adam_bc (which knows the noise), adamw or sgd. Override `configure_optimizers` for any other.
        momentum: of sgd.
        memory_map: a folder for a file of each table, which may then be larger than memory; the files are deleted.
            null: tables stay in memory.

    >>> import torch
    >>> from dprec import Learner
    >>> class Regression(Learner):
    ...     def __init__(self, inputs, **options):
    ...         super().__init__(**options)
    ...         self.layer = torch.nn.Linear(inputs, 1)
    ...     def losses(self, batch):  # (B, inputs + 1), the target last: one loss for each record
    ...         return (self.layer(batch[:, :-1]).squeeze(1) - batch[:, -1]).square()
    >>> Regression(inputs=2, learning_rate=0.01, optimizer="sgd").losses(torch.ones(5, 3)).shape
    torch.Size([5])
    """

    from_data: ClassVar[Mapping[str, str]] = {}
    goes_on: ClassVar[bool] = True  # whether a run continues with an earlier run's weights; else it starts new ones
    metrics: Any  # a `Metric` of the held-out batches, under the names by which they are logged

    def __init__(
        self,
        learning_rate: float = 1e-3,
        weight_decay: float = 1e-5,
        warmup: float = 0.2,
        final_rate: float = 0.0,
        optimizer: Literal["adam", "adam_bc", "adamw", "sgd"] = "adam",
        momentum: float = 0.0,
        memory_map: str | None = None,
    ) -> None:
        super().__init__()
        self.arguments = arguments_of(self, inspect.currentframe())
        refuse_unless(0 < learning_rate < float("inf"), "learning_rate", learning_rate, "a number above 0")
        refuse_unless(0 <= weight_decay < float("inf"), "weight_decay", weight_decay, "0 or more")
        refuse_unless(0 <= warmup <= 1, "warmup", warmup, "a number from 0 to 1")
        refuse_unless(0 <= final_rate <= 1, "final_rate", final_rate, "a number from 0 to 1")
        refuse_unless(0 <= momentum < 1, "momentum", momentum, "0 or more, below 1")
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.warmup = warmup
        self.final_rate = final_rate
        self.optimizer = optimizer
        self.momentum = momentum
        self.memory_map = memory_map

    @abstractmethod
    def losses(self, batch: Any) -> Tensor:
        """Return one loss per user or record (B,); entry u depends only on row u of the batch."""

    @abstractmethod
    def measure(self, batch: Any) -> None:
        """Add one held-out batch to `metrics`."""

    def training_step(self, batch: Sequence[Any], batch_idx: int) -> Tensor:
        """Return the mean loss of one step's users, given in micro-batches; an empty batch counts as a step."""
        loss = mean_loss(trained_parameters(self), self.losses, batch, ranks_of(self.trainer))
        if batch:
            self.log("loss_not_private", loss.detach(), prog_bar=True, batch_size=1)
        return loss

    @property
    def terms(self) -> Terms:
        """What the run provides to this model: sums over all data, and how much noise a step has."""
        return terms_of(self._trainer)

    def shared_rows(self) -> Iterable[tuple[Tensor, Tensor]]:
        """The tables and ids of rows that all users of the next step look up, such as shared negatives.

        Strategies that choose rows by the batch let these rows change in every step. So the rows may depend on the
        step, but not on data. Rows that are not named here count for every user who has a gradient there.
        """
        return ()

    @property
    def releases(self) -> tuple[Release, ...]:
        """The sums over all users that `prepare` will request, each once; they are planned before data is read."""
        return ()

    @classmethod
    def releases_of(cls, arguments: Mapping[str, Any]) -> tuple[Release, ...]:
        """The `releases` of a model with these arguments: a plan needs them before the model and its size are known.

        It is used only for the class that defines it. A subclass with another `releases` or `__init__` must define its
        own; otherwise it can be planned only with its data.
        """
        return ()

    @classmethod
    def check_files(cls, arguments: Mapping[str, Any]) -> None:
        """Refuse files in these arguments that the model could not read; a run calls this before it reads a log."""

    @property
    def assumptions(self) -> Sequence[str]:
        """What a guarantee assumes to be public because of the model's settings, in addition to the data's."""
        return ()

    @property
    def findings(self) -> Sequence[str]:
        """What `prepare` chose by released sums, a line each; printed after the run that requested them."""
        return ()

    def prepare(self, data: Any, sums: ExactSums) -> None:
        """Before the first step of a run, set the model's buffers from `sums` over a datamodule's training data."""

    def setup(self, stage: str) -> None:
        """Let this class, not Lightning, add up the gradients of several processes and divide users among them."""
        leave_to_the_step(self.trainer)

    def on_train_start(self) -> None:
        """Request the sums over all data. Without privacy, stop at the planned step, also inside an epoch."""
        ranks, terms = ranks_of(self.trainer), self.terms
        if self.memory_map is not None and not any(map(in_file, self.parameters())):
            raise UserError(
                f"model.memory_map is {self.memory_map}, but no table of {type(self).__name__} on {self.device} is in "
                "a file: train on the CPU, make tables with dprec.models.items.features.new_table, or unset it"
            )
        if terms.last is None:
            deal(getattr(self.trainer.train_dataloader, "batch_sampler", None), ranks)
            self.trainer.fit_loop.epoch_loop.max_steps = self.total_steps
            draw_from(self.trainer, self.global_step)  # a resumed run continues the draws, if they are repeatable
        if self.releases and self.global_step == 0:
            data: Any = getattr(self.trainer, "datamodule", None)
            if data is None:
                raise UserError(f"{type(self).__name__} sums over all data before training: fit it with a datamodule")
            self.prepare(data, terms.sums)
        begin_alike(self, ranks)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep what `dprec.load` needs to make and use the model, unless `dprec.fit` has kept more."""
        if "dprec" not in checkpoint:
            checkpoint["dprec"] = kept_of(self, self.trainer)
        own = checkpoint.get(self.CHECKPOINT_HYPER_PARAMS_KEY) or {}
        checkpoint[self.CHECKPOINT_HYPER_PARAMS_KEY] = plain({**self.arguments, **own})

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Convert the step count of checkpoints from versions that optimized by hand to Lightning's own."""
        loops = checkpoint.get("loops", {}).get("fit_loop", {})
        by_hand = loops.get("epoch_loop.manual_optimization.optim_step_progress")
        if by_hand is not None and by_hand["total"]["completed"]:
            loops["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]["step"] = by_hand

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run."""
        return steps_of(self.trainer)

    def configure_optimizers(self) -> Any:
        optimizer = optimizers.make(
            self.optimizer,
            self.parameters(),
            self.learning_rate,
            self.weight_decay,
            self.momentum,
            noise_std=lambda: self.terms.noise_std,
        )
        return self.scheduled(optimizer)

    def scheduled(self, optimizer: Optimizer) -> Any:
        """Return the result of `configure_optimizers` for an optimizer with the learning-rate schedule."""
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": LambdaLR(optimizer, self._rate_factor), "interval": "step"},
        }

    def _rate_factor(self, step: int) -> float:
        total = self.total_steps
        rising = round(self.warmup * total)
        if step < rising:
            return (step + 1) / rising
        left = max(0.0, (total - step) / max(1, total - rising))
        return self.final_rate + (1 - self.final_rate) * left

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.measure(batch)

    def on_validation_epoch_end(self) -> None:
        if isinstance(self.metrics, Metric) and ranks_of(self.trainer).size > 1:  # torchmetrics' do so by themselves
            self.metrics.add_up(ranks_of(self.trainer).sum_, self.device)
        self.log_dict({name: value.float() for name, value in self.metrics.compute().items()})
        self.metrics.reset()

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.validation_step(batch, batch_idx)

    def on_test_epoch_end(self) -> None:
        self.on_validation_epoch_end()


def refuse_unless(fits: bool, name: str, value: object, instead: str = "another value") -> None:
    """Refuse an argument of a model that is out of range; the message says what to give `instead`."""
    if not fits:
        raise UserError(f"model.{name} is {value}, which is out of range: give {instead}")


def mean_loss(
    parameters: Mapping[str, nn.Parameter], losses: Losses, batch: Sequence[Any], ranks: Ranks = ALONE
) -> Tensor:
    """Return the mean loss of all processes' users, whose `backward()` gives every parameter its gradient.

    Gradients are computed here, micro-batch by micro-batch: autograd's graph of a whole batch may be larger than
    memory. An empty batch has the loss 0.

    >>> layer = nn.Linear(1, 1, bias=False)
    >>> batch = [torch.ones(1, 1), torch.ones(2, 1)]
    >>> mean_loss({"weight": layer.weight}, lambda part: 2 * layer(part)[:, 0], batch).backward()
    >>> layer.weight.grad
    tensor([[2.]])
    """
    loss: Tensor = _MeanLoss.apply(losses, batch, ranks, *parameters.values())
    return loss


class _MeanLoss(torch.autograd.Function):
    """Computes its gradients in the forward pass, and returns them once."""

    @staticmethod
    def forward(ctx: Any, losses: Losses, batch: Sequence[Any], ranks: Ranks, *parameters: nn.Parameter) -> Tensor:
        users = ranks.total(sum(map(len, batch)))
        ctx.gradients = [torch.zeros_like(parameter) for parameter in parameters]
        mean = torch.zeros((), dtype=torch.float64)
        for part in filter(len, batch):
            with torch.enable_grad():
                loss = losses(getattr(part, "content", part)).sum() / users  # of a loader of a user's own
            mean += float(loss.detach())
            found = torch.autograd.grad(loss, parameters, allow_unused=True)
            for gradient, own in zip(ctx.gradients, found, strict=True):
                if own is not None:
                    gradient.add_(own)
        ranks.sum_all_(ctx.gradients)
        ranks.sum_(mean)
        return mean.to(parameters[0].device, torch.float32)

    @staticmethod
    def backward(ctx: Any, *scale: Tensor) -> tuple[Any, ...]:
        gradients, ctx.gradients = ctx.gradients, None
        return None, None, None, *(gradient.mul_(scale[0]) for gradient in gradients)

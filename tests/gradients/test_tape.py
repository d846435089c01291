"""What the tape cannot attribute to one user it refuses, however it is written, naming parameter and operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dprec.errors import UncoveredUse
from dprec.gradients.alone import OneUser
from dprec.gradients.layouts.layout import layout_of
from dprec.gradients.operations.embedding import about_to_read
from dprec.gradients.tape import Tape
from dprec.gradients.uses.expression import expression_of
from dprec.gradients.uses.registry import RULES
from dprec_kernels import catalogue_softmax
from tests.zoo.calls import CALLS, Given, people

USERS, LENGTH, DIM = 4, 5, 3


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(DIM, DIM)
        self.table = nn.Embedding(9, DIM)
        self.cell = nn.GRU(DIM, DIM, batch_first=True)
        self.time_first = nn.LSTM(DIM, DIM)
        self.projected = nn.LSTM(DIM, DIM, batch_first=True, proj_size=2)
        self.step = nn.LSTMCell(DIM, DIM)
        self.start = nn.Parameter(torch.zeros(1, USERS, DIM))
        self.attention = nn.MultiheadAttention(DIM, 1, batch_first=True)
        self.bag = nn.EmbeddingBag(9, DIM, mode="sum")
        self.highest = nn.EmbeddingBag(9, DIM, mode="max")


def run(use: Callable[[Parts, Tensor, Tensor], Tensor], users: int = USERS) -> Tape:
    parts = Parts()
    x, ids = torch.randn(users, LENGTH, DIM), torch.randint(0, 9, (users, LENGTH))
    with Tape(dict(parts.named_parameters()), users) as tape:
        tape.watch([x, ids])
        losses = use(parts, x, ids)
    tape.backward(losses)
    return tape


REFUSED = {
    "time first": (lambda m, x, ids: m.time_first(x)[0].sum((1, 2)), "time_first.*lstm.*batch_first"),
    "projected states": (lambda m, x, ids: m.projected(x)[0].sum((1, 2)), "projected.*lstm.*proj_size"),
    "start by place": (lambda m, x, ids: m.cell(x, torch.ones(1, USERS, DIM))[0].sum((1, 2)), "cell.*gru.*zeros"),
    "a sequence for a batch": (lambda m, x, ids: m.cell(x[:, 0])[0].sum(1), "cell.*gru.*unsqueeze"),
    "reordered users in a layer": (lambda m, x, ids: m.cell(x.flip(0))[0].sum((1, 2)), "cell.*gru.*flip"),
    "last states": (lambda m, x, ids: m.cell(x)[1].sum((0, 2)) + m.mix.bias.sum(), "last state.*one layer"),
    "a cell started by place": (lambda m, x, ids: m.step(x[:, 0], (x[:, 1], m.start[0]))[0].sum(1), "start.*lstm_cell"),
    "a cell started by another": (lambda m, x, ids: m.step(x[:, 0], (x[:, 1], x[:, 1].flip(0)))[0].sum(1), "flip"),
    "others in attention": (lambda m, x, ids: m.attention(*[x.flip(0)] * 3)[0].sum((1, 2)), "attention.*multi_head"),
    "bags weighted by place": (
        lambda m, x, ids: F.embedding_bag(
            ids, torch.ones(9, 1), mode="sum", per_sample_weights=m.table.weight[:USERS, :1].expand(ids.shape)
        ).sum(1),
        "table.weight.*place in the batch",
    ),
    "largest of a bag": (lambda m, x, ids: m.highest(ids).sum(1), "highest.weight.*embedding_bag.*sum or mean"),
    "another's bag": (lambda m, x, ids: m.bag(ids.roll(1, 0)).sum(1), "bag.weight.*embedding_bag.*roll"),
    "positions first": (
        lambda m, x, ids: m.mix.bias[0] + x.transpose(0, 1).cumsum(1).sum((0, 2)),
        "mix.bias.*transpose",
    ),
    "permuted": (lambda m, x, ids: m.mix(x.permute(1, 0, 2)).sum((0, 2)), "one loss per user.*transpose"),
    "reordered users": (lambda m, x, ids: m.mix(x[torch.randperm(USERS) - 4]).sum((1, 2)), "mix.*__getitem__"),
    "others in a bias": (lambda m, x, ids: F.linear(x, m.mix.weight, x.amax((0, 1))).sum((1, 2)), "mix.weight.*amax"),
    "others in a layer norm's shift": (
        lambda m, x, ids: F.layer_norm(x, (DIM,), m.mix.weight[0], x.amax((0, 1))).sum((1, 2)),
        "mix.weight.*amax",
    ),
    "another's targets": (
        lambda m, x, ids: catalogue_softmax(x, m.table.weight, ids.roll(1, 0)).sum(1),
        "table.weight.*targets.*roll",
    ),
    "mean loss": (lambda m, x, ids: m.mix(x).mean(), "one loss per user"),
    "users mixed after the parameters": (lambda m, x, ids: m.mix(x).sum((1, 2)).softmax(0), "softmax"),
    "parameters alone": (lambda m, x, ids: m.mix.weight.sum().expand(USERS), "one loss per user"),
    "no parameter": (lambda m, x, ids: ids.float().sum(1), "no parameter that is trained"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_use_that_cannot_be_attributed_is_refused(case: str) -> None:
    use, message = REFUSED[case]
    with pytest.raises(UncoveredUse, match=message) as caught:
        run(use)
    assert "\n" not in str(caught.value)


def test_a_use_the_tape_did_not_see_is_found_afterwards() -> None:
    layer, x = nn.Linear(DIM, 1), torch.randn(USERS, DIM)
    hidden_use = layer.weight.sum()  # before the tape was on
    with Tape(dict(layer.named_parameters()), USERS) as tape:
        tape.watch([x])
        losses = layer(x).squeeze(1) + hidden_use
    with pytest.raises(UncoveredUse, match="weight.*did not see"):
        tape.backward(losses)
    assert layer.weight.grad is None


def test_an_operation_that_has_nothing_to_do_leaves_the_parameter_what_it_is() -> None:
    layer, x = nn.Linear(DIM, 1), torch.randn(USERS, DIM)
    with Tape(dict(layer.named_parameters()), USERS) as tape:
        tape.watch([x])
        losses = F.linear(x, layer.weight.float().contiguous().to(torch.float32), layer.bias).squeeze(1)
    tape.backward(losses)
    assert expression_of(layer.weight) is None
    with Tape(dict(layer.named_parameters()), USERS) as plain:
        plain.watch([x])
        losses = layer(x).squeeze(1)
    plain.backward(losses)
    assert [type(use) for use in tape.contributions["weight"]] == [type(use) for use in plain.contributions["weight"]]


def test_a_second_backward_pass_is_refused() -> None:
    layer, x = nn.Linear(DIM, 1), torch.randn(USERS, DIM)
    with Tape(dict(layer.named_parameters()), USERS) as tape:
        tape.watch([x])
        losses = layer(x).squeeze(1)
    tape.backward(losses)
    with pytest.raises(UncoveredUse, match="closed"):
        losses.sum().backward()


def test_an_input_changed_after_its_use_is_found() -> None:
    def use(m: Parts, x: Tensor, ids: Tensor) -> Tensor:
        hidden = x * 2
        first = m.mix(hidden)
        hidden.add_(1.0)
        return (first + hidden).sum((1, 2))

    with pytest.raises(UncoveredUse, match="mix.weight.*in place"):
        run(use)


def test_detached_and_metadata_uses_are_no_uses() -> None:
    def use(m: Parts, x: Tensor, ids: Tensor) -> Tensor:
        with torch.no_grad():
            size = m.mix.weight.norm()
        return m.mix(x / (1 + size) * m.mix.weight.shape[0] + m.mix.bias.detach()).sum((1, 2))

    assert len(run(use).contributions["mix.weight"]) == 1


@pytest.mark.parametrize(
    "form",
    [
        lambda w: w[:, :2],
        lambda w: w[None],
        lambda w: w[3, 1],
        lambda w: w[torch.ones(6, dtype=torch.bool)],
        lambda w: torch.nn.functional.embedding_bag(torch.tensor([[1, 5]]), w),
        lambda w: w.detach()[2],
        lambda w: w.index_select(1, torch.tensor([0])),
    ],
)
def test_every_form_of_reading_a_table_is_announced(form: Any) -> None:
    """Rows may wait for noise until somebody reads them."""
    table, heard = nn.Embedding(6, 3), []
    with torch.no_grad(), Tape({"w": table.weight}, users=1, read=heard.append):
        form(table.weight)
    assert {"w": None} in heard


def test_what_is_announced_ahead_is_not_announced_again() -> None:
    """Unless other ids are read, or the same tensor holds others by then: rows would be read without their noise."""
    tables, heard = [nn.Embedding(6, 3).weight, nn.Embedding(4, 2).weight], []
    ids = [torch.tensor([[1, 5], [0, 2]]), torch.tensor([[3], [3]])]
    with torch.no_grad(), Tape(dict(zip("vw", tables, strict=True)), users=2, read=heard.append) as tape:
        tape.watch(ids)
        about_to_read(tables, ids)
        assert heard == [{"v": ids[0], "w": ids[1]}]
        nn.functional.embedding(ids[0], tables[0])
        nn.functional.embedding_bag(ids[1], tables[1], mode="sum")
        assert len(heard) == 1
        nn.functional.embedding(ids[0] + 0, tables[0])
        ids[1].add_(-1)
        nn.functional.embedding(ids[1], tables[1])
        tables[0].sum()
    assert [list(each) for each in heard[1:]] == [["v"], ["w"], ["v"]]
    assert heard[3] == {"v": None}


def test_who_is_alone_announces_each_look_up() -> None:
    tables, heard = [nn.Embedding(6, 3).weight, nn.Embedding(4, 2).weight], []
    ids = [torch.tensor([[1, 5]]), torch.tensor([[3]])]
    about_to_read(tables, ids)  # nobody listens
    with torch.no_grad(), OneUser(dict(zip("vw", tables, strict=True)), heard.append):
        about_to_read(tables, ids)
        assert not heard
        nn.functional.embedding(ids[0], tables[0])
    assert [list(each) for each in heard] == [["v"]]


@pytest.mark.parametrize("own_pass", [False, True])
def test_no_other_tensor_gets_a_gradient(own_pass: bool) -> None:
    """A parameter of the loss, as metric learning has them, would be trained by gradients without noise."""
    scale = torch.ones(DIM, requires_grad=True)

    def use(parts: Parts, x: Tensor, ids: Tensor) -> Tensor:
        other = (x * scale).sum((1, 2))
        if own_pass:
            other.sum().backward()
            other = other.detach()
        return parts.mix(x).sum((1, 2)) + other

    with pytest.raises(UncoveredUse, match="have no noise" if own_pass else "no trained parameter of the model"):
        run(use)
    assert scale.grad is None


def test_every_covered_operation_is_called_in_every_way() -> None:
    assert set(RULES) - {about_to_read} == {call.function for call in CALLS}  # which gives nothing


@pytest.mark.parametrize("function", [torch.mul, torch.matmul])
def test_a_result_that_is_written_elsewhere_is_refused(function: Any) -> None:
    g = Given()
    g.data = people()
    with Tape(dict(g.named_parameters()), USERS) as tape, pytest.raises(UncoveredUse, match="'w'.*out=") as caught:
        function(g.rows, g.w[:1] if function is torch.mul else g.w, out=torch.zeros(USERS, 3))
    assert not tape.contributions
    assert "\n" not in str(caught.value)


def test_what_is_changed_in_place_is_followed_by_name_too() -> None:
    x, mine = torch.rand(USERS, 2), torch.rand(USERS, 2)
    with Tape({}, USERS) as tape:
        tape.watch([x])
        kept = torch.dropout_(input=mine, p=0.0, train=True)
        assert layout_of(kept) is None
        known = layout_of(torch.relu_(input=x * 2))
    assert known is not None
    assert known.known

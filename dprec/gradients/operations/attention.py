"""torch's own attention: `nn.MultiheadAttention`, so also its Transformer layers, and a parameter as the mask."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dprec.gradients.layouts.follow import follow
from dprec.gradients.layouts.layout import layout_of
from dprec.gradients.operations.elementwise import copied_for_users
from dprec.gradients.uses.arguments import named
from dprec.gradients.uses.registry import Operation, Recorder, rule

_NAMES = tuple(inspect.signature(F.multi_head_attention_forward).parameters)
_DEFAULTS = {
    name: parameter.default
    for name, parameter in inspect.signature(F.multi_head_attention_forward).parameters.items()
    if parameter.default is not inspect.Parameter.empty
}


@rule(F.multi_head_attention_forward, exchanged=True)
def multi_head_attention(tape: Recorder, function: Operation, args: Any, kwargs: Any) -> Any:
    """Compute it by operations that have rules. Time comes first, as in torch's module."""
    given = _DEFAULTS | named(_NAMES, args, kwargs)
    inputs = [given[name] for name in ("query", "key", "value")]
    extra = (given["bias_k"], given["bias_v"], given["static_k"], given["static_v"])
    if any(each is not None for each in extra) or given["add_zero_attn"] or not all(map(_time_first, inputs)):
        return NotImplemented
    if given["use_separate_proj_weight"] or given["out_proj_weight"] is None:
        return NotImplemented
    with tape:
        first = {id(each): each.transpose(0, 1) for each in inputs}  # (N, T, E)
        q, k, v = _projected([first[id(each)] for each in inputs], given["in_proj_weight"], given["in_proj_bias"])
        heads = given["num_heads"]
        q, k, v = (each.unflatten(-1, (heads, -1)).transpose(1, 2) for each in (q, k, v))  # (N, heads, T, d)
        mask = _mask(given, len(q), heads, q.dtype)
        dropout = given["dropout_p"] if given["training"] else 0.0
        weights = None
        if given["need_weights"]:
            scores = q @ k.mT / q.shape[-1] ** 0.5
            weights = F.dropout((scores if mask is None else scores + mask).softmax(-1), dropout)
            mixed = weights @ v
            weights = weights.mean(1) if given["average_attn_weights"] else weights
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, mask, dropout)
        output = F.linear(mixed.transpose(1, 2).flatten(2), given["out_proj_weight"], given["out_proj_bias"])
        return output.transpose(0, 1), weights


def _time_first(tensor: Tensor) -> bool:
    known = layout_of(tensor)
    return tensor.dim() == 3 and known is not None and known.second > 0


def _projected(inputs: list[Tensor], weight: Tensor, bias: Tensor | None) -> Any:
    query, key, value = inputs
    if query is key and key is value:
        return F.linear(query, weight, bias).chunk(3, -1)
    size = weight.shape[0] // 3
    parts = [slice(place * size, (place + 1) * size) for place in range(3)]
    return [
        F.linear(each, weight[part], None if bias is None else bias[part])
        for each, part in zip(inputs, parts, strict=True)
    ]


def _mask(given: dict[str, Any], users: int, heads: int, dtype: torch.dtype) -> Tensor | None:
    """Return what is added to the scores (users, heads, T, S)."""
    mask, padding = _added(given["attn_mask"], dtype), _added(given["key_padding_mask"], dtype)
    if mask is not None and mask.dim() == 3:
        mask = mask.reshape(users, heads, *mask.shape[1:])
    if padding is None:
        return mask
    padding = padding[:, None, None, :]
    return padding if mask is None else padding + mask


def _added(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, float("-inf"))


@rule(F.scaled_dot_product_attention)
def scaled_dot_product_attention(tape: Recorder, function: Operation, args: Any, kwargs: Any) -> Any:
    """Attention of users' tensors with a trained mask: each user gets a copy of the mask."""
    given = named(("query", "key", "value", "attn_mask", "dropout_p", "is_causal"), args, kwargs)
    query, key, mask = given["query"], given["key"], given.get("attn_mask")
    if mask is None or not tape.trainable(mask) or any(map(tape.trainable, (query, key, given["value"]))):
        return NotImplemented
    shape = torch.broadcast_shapes((*query.shape[:-1], key.shape[-2]), mask.shape)
    given["attn_mask"] = copied_for_users(tape, mask, shape, tape.rows(query, "scaled_dot_product_attention", mask))
    output = function(**given)
    follow(function, (query, key, given["value"]), {}, output, tape.users)
    return output

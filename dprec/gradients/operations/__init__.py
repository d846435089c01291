"""Per-user gradient rules, one file per kind of operation.

A rule is `rule(tape, function, args, kwargs)`. It runs `function` on detached parameters, and `tape.record`s
for every parameter how the gradient of the output becomes a `Contribution`. It returns `NotImplemented` for a
call that involves no user's data, which the tape then treats as an expression of parameters.
To add an operation, write its rule in a new file here and enter it in `RULES`.
"""

from __future__ import annotations

from dprec.gradients.operations import catalogue_softmax, elementwise, embedding, layer_norm, linear, recurrent
from dprec.gradients.operations.rule import Rules

RULES: Rules = {
    **linear.RULES,
    **embedding.RULES,
    **layer_norm.RULES,
    **elementwise.RULES,
    **catalogue_softmax.RULES,
    **recurrent.RULES,
}

LOOK_UPS = frozenset(embedding.RULES)  # these announce which rows they read

HINTS = {
    "batch_norm": "it mixes users, so no clipping can bound one of them; use LayerNorm",
    "multi_head_attention_forward": "use torch.nn.functional.scaled_dot_product_attention between linear layers",
    "rnn_tanh": "use torch.nn.GRU or torch.nn.LSTM, or write the cell with linear layers",
    "rnn_relu": "use torch.nn.GRU or torch.nn.LSTM, or write the cell with linear layers",
}

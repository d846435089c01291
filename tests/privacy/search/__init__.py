"""A search for users whom the engine lets through: random models, batches made to be hard, one user more or less.

    python -m tests.privacy.search --cases 20000 --seed 1

Each case is a function of one integer. It draws a model from the operations that the package covers (`layers`,
`readouts`), users of an awkward form (`users`), weights and data that sit at the edge of their precision (`extremes`,
`ascent`), and a setting of the engine: clipping, precision, strategy for tables, split into micro-batches (`plan`).
Then the engine sums a batch with a user and without (`engine`), and the two sums must differ by no more than the
noise is made for. What the user's share should be comes from plain autograd in float64 (`oracle`).

`--seed N --cases 1` repeats case N, and `--plan` takes a printed plan, from which you may leave layers out.
"""

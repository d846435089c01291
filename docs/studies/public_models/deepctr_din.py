"""deepctr_torch's DIN tells each user's next item from a random one: `pip install deepctr-torch==0.3.0 --no-deps`.

`log.txt` has a line for each event, in their order: numbers of a user and of an item, from 1, with a space between.
"""

import polars
import torch
from deepctr_torch.inputs import SparseFeat, VarLenSparseFeat
from deepctr_torch.models.din import DIN

import dprec

log = polars.read_csv("log.txt", new_columns=["user", "item"], separator=" ", has_header=False)
latest = [torch.tensor(items[-21:][::-1]) for items in log.group_by("user").agg("item")["item"].to_list()]
rows = torch.nn.utils.rnn.pad_sequence(latest, batch_first=True)  # (users, 21), the last item first
count, lengths = log["item"].max() + 1, (rows[:, 1:] != 0).sum(1, keepdim=True)
users = torch.cat([rows[:, :1], torch.randint(1, count, lengths.shape), rows[:, 1:], lengths], 1)
history = VarLenSparseFeat(SparseFeat("hist_item", count, 16, embedding_name="item"), 20, length_name="length")
model = DIN([SparseFeat("item", count, 16), history], ["item"], att_activation="sigmoid", l2_reg_embedding=0)


def losses(rows):
    chosen, other = (model(torch.cat([rows[:, [which]], rows[:, 2:]], 1).float()) for which in (0, 1))
    return -(chosen.clamp(min=1e-6).log() + (1 - other.clamp(max=1 - 1e-6)).log()).squeeze(1)


optimizer = torch.optim.Adam(model.parameters(), 0.01)
training = dprec.private(model, optimizer, users, losses=losses, epsilon=8, expected_batch=2048, steps=60)
for batch in training:
    print(training.step(batch))
print(training.guarantee())

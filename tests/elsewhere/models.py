"""Public models from the package index: how each is made small, and what its loss of each user is.

`MODELS` has a function for each, which makes of a number of users the model, its `losses(model, batch)` and a batch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import yaml
from scipy import sparse
from torch import Tensor, nn

Batch = Mapping[str, Tensor]
Losses = Callable[[Any, Batch], Tensor]
Build = Callable[[int], tuple[nn.Module, Losses, Batch]]
MODELS: dict[str, Build] = {}
TIMED = "SIZES" in globals()  # docs/studies/elsewhere.py sets these where it measures time
ITEMS, LENGTH, DIM = globals()["SIZES"] if TIMED else (100, 12, 32)


def width(own: int) -> int:
    """Return a package's own width of embeddings where time is measured; small ones are enough to compare sums."""
    return own if TIMED else DIM


def ids(*shape: int, most: int = ITEMS) -> Tensor:
    return torch.randint(1, most, shape)


def lengths(users: int) -> Tensor:
    return torch.arange(users) % LENGTH + 1


def histories(users: int) -> Tensor:
    """Ids (users, LENGTH), padded on the right by 0."""
    return ids(users, LENGTH) * (torch.arange(LENGTH) < lengths(users).unsqueeze(1))


def labels(users: int) -> Tensor:
    return (torch.arange(users) % 2).float()


def clicked(logits: Tensor, batch: Batch) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits.flatten(), batch["label"], reduction="none")


def next_items(logits: Tensor, batch: Batch) -> Tensor:
    """The sum over a user's items of the loss of the item that comes next, of logits (B, T, items)."""
    wanted = batch["history"][:, 1:]
    each = F.cross_entropy(logits[:, :-1].transpose(1, 2), wanted, reduction="none")
    return (each * (wanted != 0)).sum(1)


def language(make: Callable[[], nn.Module], logits: Callable[[Any, Batch], Tensor] | None = None) -> Build:
    """Make a model of histories, which are read as a text's words."""
    of = logits or (lambda model, batch: model(batch["history"]))
    return lambda users: (make(), lambda m, b: next_items(of(m, b), b), {"history": histories(users)})


def twice(build: Build) -> Build:
    """Give a user who is alone twice to a model in which `.squeeze()` would take one user for none."""

    def of_any(users: int) -> Any:
        model, losses, batch = build(users)

        def each(model: Any, batch: Batch) -> Tensor:
            count = len(next(iter(batch.values())))
            given = {name: torch.cat([rows, rows]) for name, rows in batch.items()} if count == 1 else batch
            return losses(model, given)[:count]

        return model, each, batch

    return of_any


class Headed(nn.Module):
    """A table, a body that takes and returns vectors, and scores of all items by the same table."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.table, self.body = nn.Embedding(ITEMS, DIM), body

    def forward(self, history: Tensor) -> Tensor:
        return F.linear(self.body(self.table(history)), self.table.weight)


# RecBole: `calculate_loss` as it is, once its criterion takes no mean


class Pairs(nn.Module):
    """RecBole's BPRLoss without its mean."""

    def forward(self, good: Tensor, bad: Tensor) -> Tensor:
        return -torch.log(1e-10 + torch.sigmoid(good - bad))


class RecBoleSettings(dict[str, Any]):
    """RecBole's own settings of a model."""

    def __init__(self, name: str) -> None:
        import recbole

        folder = Path(recbole.__file__).parent / "properties"
        for file in ("overall", "dataset/ml-100k", f"model/{name}"):
            text = re.sub(r"\b(\d)e-", r"\1.0e-", (folder / f"{file}.yaml").read_text())  # PyYAML takes 1e-8 for a word
            self.update(yaml.safe_load(text) or {})

    def __missing__(self, key: str) -> None:
        return None

    def __getattr__(self, key: str) -> Any:
        return self if key == "final_config_dict" else self[key]


class RecBoleData:
    """What RecBole's models ask of a data set."""

    user_num = item_num = ITEMS
    field2seqlen = {"item_id_list": LENGTH}  # noqa: RUF012

    @property
    def field2type(self) -> Any:
        from recbole.utils import FeatureType

        return dict.fromkeys(("user_id", "item_id", "genre"), FeatureType.TOKEN)

    def num(self, field: str) -> int:
        return ITEMS

    def fields(self, source: Any = None) -> list[str]:
        if source and len(source) == 2:  # a tower's
            return ["user_id"] if "user" in source[0].value else ["item_id", "genre"]
        return ["user_id", "item_id", "genre"]

    def inter_matrix(self, form: str = "coo", value_field: Any = None) -> Any:
        return sparse.random(ITEMS, ITEMS, 0.05, form, dtype=np.float32, random_state=1)

    def history_item_matrix(self, **_: Any) -> Any:
        return histories(ITEMS), (histories(ITEMS) != 0).float(), lengths(ITEMS)

    history_user_matrix = history_item_matrix


def recbole(kind: str, name: str, **settings: Any) -> Build:
    def build(users: int) -> Any:
        module = import_module(f"recbole.model.{kind}_recommender.{name.lower()}")
        config = RecBoleSettings(name)
        if not TIMED:
            config |= {"embedding_size": DIM, "hidden_size": DIM, "n_layers": 1}
        config |= {"MAX_ITEM_LIST_LENGTH": LENGTH, "numerical_features": [], "device": torch.device("cpu"), **settings}
        model = getattr(module, name)(config, RecBoleData())
        for part in list(model.modules()):
            for attribute, value in list(part._modules.items()):
                if type(value).__name__ == "BPRLoss":
                    setattr(part, attribute, Pairs())
            if hasattr(part, "reduction"):
                part.reduction = "none"
        history = histories(users)
        batch = {
            "user_id": ids(users), "item_id": ids(users), "neg_item_id": ids(users), "genre": ids(users),
            "item_id_list": history, "item_length": lengths(users), "label": labels(users),
            "Mask_item_id_list": history, "Pos_item_id": ids(users, 3), "Neg_item_id": ids(users, 3),
            "MASK_INDEX": ids(users, 3, most=LENGTH), "inverse_item_list": history.flip(1),
        }  # fmt: skip
        return model, losses, batch

    def losses(model: Any, batch: Batch) -> Tensor:
        return model.calculate_loss(batch).reshape(-1)

    return build


SEQUENTIAL = (
    "SASRec Caser CORE FOSSIL FPMC GCSAN GRU4Rec HGN HRM LightSANs NARM NextItNet NPE SHAN SINE SRGNN STAMP TransRec"
)
CONTEXT = "AFM AutoInt DCN DeepFM EulerNet FFM FiGNN FM FNN FwFM LR NFM PNN WideDeep xDeepFM"
for name in SEQUENTIAL.split():
    more = {"INVERSE_ITEM_SEQ": "inverse_item_list", "n_users": ITEMS}
    MODELS[f"RecBole {name}"] = recbole("sequential", name, **more)
for name in CONTEXT.split():
    MODELS[f"RecBole {name}"] = recbole("context_aware", name)
for name in ("BPR", "DMF", "NeuMF", "FISM", "NAIS", "MultiVAE", "SimpleX"):
    MODELS[f"RecBole {name}"] = recbole("general", name)


# pytorch-fm and deepctr: four fields of ids


def clicks(make: Callable[[], nn.Module], logits: Callable[[Any, Batch], Tensor] | None = None) -> Build:
    of = logits or (lambda model, batch: model(batch["fields"]))
    return lambda users: (
        make(),
        lambda m, b: clicked(of(m, b), b),
        {"fields": ids(users, 4), "history": histories(users), "label": labels(users)},
    )


def torchfm(module: str, name: str, *sizes: Any) -> Build:
    def make() -> Any:
        model = getattr(import_module(f"torchfm.model.{module}"), name)([ITEMS] * 4, *sizes)
        return model

    return clicks(make, lambda m, b: torch.logit(m(b["fields"]).clamp(1e-6, 1 - 1e-6)))


MODELS |= {
    "pytorch-fm FM": torchfm("fm", "FactorizationMachineModel", width(16)),
    "pytorch-fm FFM": torchfm("ffm", "FieldAwareFactorizationMachineModel", width(16)),
    "pytorch-fm LR": torchfm("lr", "LogisticRegressionModel"),
    "pytorch-fm AFM": torchfm("afm", "AttentionalFactorizationMachineModel", width(16), 16, (0.0, 0.0)),
    "pytorch-fm AutoInt": torchfm(
        "afi", "AutomaticFeatureInteractionModel", width(16), 16, 2, 2, (32,), (0.0, 0.0, 0.0)
    ),
    "pytorch-fm AFN": torchfm("afn", "AdaptiveFactorizationNetwork", width(16), 16, (32,), (0.0, 0.0, 0.0)),
    "pytorch-fm DCN": torchfm("dcn", "DeepCrossNetworkModel", width(16), 2, (32,), 0.0),
    "pytorch-fm DeepFM": torchfm("dfm", "DeepFactorizationMachineModel", width(16), (32,), 0.0),
    "pytorch-fm xDeepFM": torchfm("xdfm", "ExtremeDeepFactorizationMachineModel", width(16), (32,), 0.0, (16, 16)),
}


def deepctr(module: str, name: str, **settings: Any) -> Build:
    def make() -> Any:
        from deepctr_torch.inputs import SparseFeat

        columns = [SparseFeat(f"f{field}", ITEMS, width(4)) for field in range(4)]
        kind = getattr(import_module(f"deepctr_torch.models.{module}"), name)
        return kind(*[columns] * (1 if name == "PNN" else 2), init_std=0.1, **settings)

    return clicks(make, lambda m, b: torch.logit(m(b["fields"].float()).clamp(1e-6, 1 - 1e-6)))


DEEP = {} if TIMED else {"dnn_hidden_units": (32, 32)}
for module, name in (
    ("deepfm", "DeepFM"), ("autoint", "AutoInt"), ("ccpm", "CCPM"), ("dcn", "DCN"), ("dcnmix", "DCNMix"),
    ("difm", "DIFM"), ("fibinet", "FiBiNET"), ("ifm", "IFM"), ("nfm", "NFM"), ("onn", "ONN"), ("pnn", "PNN"),
    ("wdl", "WDL"), ("xdeepfm", "xDeepFM"),
):  # fmt: skip
    MODELS[f"deepctr {name}"] = deepctr(module, name, **DEEP)
MODELS["deepctr DCNMix"] = twice(MODELS["deepctr DCNMix"])
MODELS["deepctr AFM"] = deepctr("afm", "AFM")
MODELS["deepctr AFN"] = deepctr("afn", "AFN", afn_dnn_hidden_units=(32,), ltl_hidden_size=16)


def deepctr_of_histories(module: str, name: str, **settings: Any) -> Build:
    def make() -> Any:
        from deepctr_torch.inputs import SparseFeat, VarLenSparseFeat

        history = SparseFeat("hist_item", ITEMS, width(4), embedding_name="item")
        columns = [SparseFeat("user", ITEMS, width(4)), SparseFeat("item", ITEMS, width(4))]
        columns += [VarLenSparseFeat(history, maxlen=LENGTH, length_name="length")]
        kind = getattr(import_module(f"deepctr_torch.models.{module}"), name)
        return kind(columns, ["item"], init_std=0.1, **({} if TIMED else {"dnn_hidden_units": (32,)}), **settings)

    def logits(model: Any, batch: Batch) -> Tensor:
        length = (batch["history"] != 0).sum(1, keepdim=True)
        found = model(torch.cat([batch["fields"][:, :2], batch["history"], length], 1).float())
        return torch.logit(found.clamp(1e-6, 1 - 1e-6))

    return clicks(make, logits)


MODELS["deepctr DIN"] = deepctr_of_histories("din", "DIN", att_activation="sigmoid")
MODELS["deepctr DIEN"] = deepctr_of_histories("dien", "DIEN")


# torch-rechub


def rechub(module: str, name: str, make: Callable[[Any, Any], nn.Module], losses: Losses) -> Build:
    def build(users: int) -> Any:
        features = import_module("torch_rechub.basic.features")
        model = make(getattr(import_module(f"torch_rechub.models.{module}"), name), features)
        history = histories(users)
        batch = {
            "seq": history, "history": history, "pos": ids(users, LENGTH), "neg": ids(users, LENGTH),
            "item": ids(users), "user": ids(users), "others": ids(users, 3), "label": labels(users),
        }  # fmt: skip
        return model, losses, batch

    return build


def field(features: Any, name: str, shared: str | None = None) -> Any:
    return features.SparseFeature(name, ITEMS, width(16), shared_with=shared)


def sequence(features: Any, name: str, pooling: str = "concat", shared: str | None = None) -> Any:
    return features.SequenceFeature(name, ITEMS, width(16), pooling=pooling, shared_with=shared, padding_idx=0)


def sampled(model: Any, batch: Batch) -> Tensor:
    return -F.log_softmax(model(batch), 1)[:, 0]


def of_all_items(model: Any, batch: Batch) -> Tensor:
    longest = int((batch["seq"] != 0).sum(1).max())  # packed sequences come back as long as this
    return F.cross_entropy(model({"seq": batch["seq"][:, :longest]}), batch["item"], reduction="none")


def of_pairs(model: Any, batch: Batch) -> Tensor:
    good, bad = model(batch)
    return (F.softplus(-good) + F.softplus(bad)).sum(1)


def probable(model: Any, batch: Batch) -> Tensor:
    found = model(batch)
    found = found[0] if isinstance(found, tuple) else found
    return F.binary_cross_entropy(found, batch["label"], reduction="none")


def history_features(f: Any) -> dict[str, Any]:
    return {
        "user_features": [field(f, "user")],
        "history_features": [sequence(f, "seq", shared="item")],
        "item_features": [field(f, "item")],
        "neg_item_feature": [sequence(f, "others", shared="item")],
    }


def rechub_ranking(name: str, module: str, make: Callable[[Any, list[Any]], nn.Module]) -> Build:
    return rechub(f"ranking.{module}", name, lambda kind, f: make(kind, [field(f, "user"), field(f, "item")]), probable)


TOWER = {"dims": [32], "activation": "prelu"}
MODELS |= {
    "torch-rechub SASRec": rechub(
        "matching.sasrec",
        "SASRec",
        lambda kind, f: kind(
            [sequence(f, "seq"), sequence(f, "pos", shared="seq"), sequence(f, "neg", shared="seq")],
            max_len=LENGTH,
            dropout_rate=0.0,
            num_blocks=1,
            num_heads=2,
        ),
        of_pairs,
    ),
    "torch-rechub NARM": rechub(
        "matching.narm", "NARM", lambda kind, f: kind(sequence(f, "seq"), width(16), 0.0, 0.0), of_all_items
    ),
    "torch-rechub STAMP": rechub(
        "matching.stamp", "STAMP", lambda kind, f: kind(sequence(f, "seq"), 0.05, 0.1), of_all_items
    ),
    "torch-rechub SINE": rechub(
        "matching.sine",
        "SINE",
        lambda kind, f: kind(["seq"], ["item"], ["others"], ITEMS, DIM, 16, 4, 2, LENGTH),
        sampled,
    ),
    "torch-rechub GRU4Rec": rechub(
        "matching.gru4rec", "GRU4Rec", lambda kind, f: kind(**history_features(f), user_params=TOWER), sampled
    ),
    "torch-rechub ComiRec-SA": rechub(
        "matching.comirec", "ComirecSA", lambda kind, f: kind(**history_features(f)), sampled
    ),
    "torch-rechub MIND": rechub(
        "matching.mind", "MIND", lambda kind, f: kind(**history_features(f), max_length=LENGTH), sampled
    ),
    "torch-rechub AFM": rechub_ranking("AFM", "afm", lambda kind, f: kind(f, width(16))),
    "torch-rechub AutoInt": rechub_ranking("AutoInt", "autoint", lambda kind, f: kind(f, [])),
    "torch-rechub DeepFM": rechub_ranking("DeepFM", "deepfm", lambda kind, f: kind(f, f, {"dims": [32]})),
    "torch-rechub HSTU": rechub(
        "generative.hstu",
        "HSTUModel",
        lambda kind, f: kind(ITEMS, d_model=DIM, n_heads=2, n_layers=1, max_seq_len=LENGTH),
        lambda m, b: next_items(m(b["history"]), b),
    ),
}
MODELS["torch-rechub SASRec"] = twice(MODELS["torch-rechub SASRec"])


# Hugging Face


def transformers(name: str, **more: Any) -> Build:
    """Make a model of that name by its own configuration, with whatever of these sizes it knows."""
    sizes = {
        "vocab_size": ITEMS, "hidden_size": DIM, "num_hidden_layers": 1, "num_attention_heads": 2, "pad_token_id": 0,
        "intermediate_size": 2 * DIM, "max_position_embeddings": LENGTH + 20, "d_model": DIM, "num_layers": 1,
        "num_heads": 2, "num_key_value_heads": 1, "bos_token_id": 1, "eos_token_id": 2, "d_ff": 2 * DIM, "d_kv": 16,
        "head_dim": 16,
    }  # fmt: skip

    def make() -> Any:
        import transformers

        kind = getattr(transformers, name)
        return kind(kind.config_class(**sizes | more))

    def logits(model: Any, batch: Batch) -> Tensor:
        history = batch["history"]
        more = {"decoder_input_ids": history} if model.config.is_encoder_decoder else {}
        found: Tensor = model(input_ids=history, attention_mask=(history != 0).long(), **more).logits
        return found

    return language(make, logits)


ENCODERS = "Albert Bert DistilBert Electra MPNet Roberta ModernBert DebertaV2 FNet ConvBert"
DECODERS = "GPTNeoX Llama Mistral Qwen2 Qwen3 Gemma Phi OPT Mamba"
for name in (
    *(f"{family}ForMaskedLM" for family in ENCODERS.split()), "GPT2LMHeadModel",
    *(f"{family}ForCausalLM" for family in DECODERS.split()), "T5ForConditionalGeneration",
    "BartForConditionalGeneration",
):  # fmt: skip
    MODELS[f"transformers {name}"] = transformers(name)
MODELS["transformers MixtralForCausalLM"] = transformers("MixtralForCausalLM", experts_implementation="eager")
MODELS["transformers RecurrentGemmaForCausalLM"] = transformers("RecurrentGemmaForCausalLM", use_cache=False)


# Other bodies


def x_transformers(layers: str, **settings: Any) -> Build:
    def make() -> Any:
        x = import_module("x_transformers")
        body = getattr(x, layers)(dim=DIM, depth=1, heads=2, attn_dim_head=16, **settings)
        return x.TransformerWrapper(num_tokens=ITEMS, max_seq_len=LENGTH, attn_layers=body)

    return language(make, lambda m, b: m(b["history"]))


def body(module: str, name: str, *sizes: Any, **settings: Any) -> Build:
    return language(lambda: Headed(getattr(import_module(module), name)(*sizes, **settings)))


def mamba(module: str, name: str, **settings: Any) -> Build:
    def make() -> Any:
        m = import_module(f"mambapy.{module}")
        return Headed(getattr(m, name)(getattr(m, f"{name}Config")(d_model=DIM, n_layers=1, **settings)))

    return language(make)


def tabular(make: Callable[[], nn.Module], call: Callable[[Any, Tensor, Tensor], Tensor]) -> Build:
    def build(users: int) -> Any:
        batch = {"numbers": torch.randn(users, 3), "fields": ids(users, 2, most=8), "label": labels(users)}
        return make(), lambda m, b: clicked(call(m, b["numbers"], b["fields"]), b), batch

    return build


def made(module: str, name: str, *sizes: Any, **settings: Any) -> Callable[[], Any]:
    return lambda: getattr(import_module(module), name)(*sizes, **settings)


MODELS |= {
    "x-transformers decoder": x_transformers("Decoder"),
    "x-transformers decoder, rotary, RMS, SwiGLU": x_transformers(
        "Decoder", rotary_pos_emb=True, use_rmsnorm=True, ff_glu=True, ff_swish=True
    ),
    "x-transformers decoder, ALiBi": x_transformers("Decoder", alibi_pos_bias=True, alibi_num_heads=2),
    "x-transformers decoder, T5 bias": x_transformers("Decoder", rel_pos_bias=True),
    "x-transformers encoder": x_transformers("Encoder"),
    "mambapy Mamba": mamba("mamba", "Mamba"),
    "mambapy Mamba, sequential": mamba("mamba", "Mamba", pscan=False),
    "minGRU": body("minGRU_pytorch", "minGRU", DIM),
    "minLSTM": body("minGRU_pytorch.minLSTM", "minLSTM", DIM),
    "gMLP": body("g_mlp_pytorch", "gMLP", dim=DIM, depth=1, seq_len=LENGTH),
    "Linformer": body("linformer", "Linformer", dim=DIM, seq_len=LENGTH, depth=1, heads=2, k=4),
    "Performer": body("performer_pytorch", "Performer", dim=DIM, depth=1, heads=2, dim_head=16, causal=False,
                      auto_check_redraw=False),
    "local-attention": language(
        made("local_attention", "LocalTransformer", num_tokens=ITEMS, dim=DIM, depth=1, max_seq_len=LENGTH,
             causal=True, local_attn_window_size=4),
    ),
    "RTDL FT-Transformer": tabular(
        made("rtdl_revisiting_models", "FTTransformer", n_cont_features=3, cat_cardinalities=[8, 8], d_out=1,
             n_blocks=1, d_block=DIM, attention_n_heads=2, attention_dropout=0.0, ffn_d_hidden=48,
             ffn_d_hidden_multiplier=None, ffn_dropout=0.0, residual_dropout=0.0),
        lambda m, x, ids: m(x, ids),
    ),
    "RTDL MLP": tabular(
        made("rtdl_revisiting_models", "MLP", d_in=3, d_out=1, n_blocks=2, d_block=DIM, dropout=0.0),
        lambda m, x, ids: m(x),
    ),
    "TabTransformer": tabular(
        made("tab_transformer_pytorch", "TabTransformer", categories=(8, 8), num_continuous=3, dim=DIM, depth=1,
             heads=2, mlp_act=nn.ReLU()),
        lambda m, x, ids: m(ids, x),
    ),
    "FT-Transformer of tab-transformer-pytorch": tabular(
        made("tab_transformer_pytorch", "FTTransformer", categories=(8, 8), num_continuous=3, dim=DIM, depth=1,
             heads=2),
        lambda m, x, ids: m(ids, x),
    ),
    "TabM": tabular(
        made("tabm", "TabM", n_num_features=3, cat_cardinalities=[8, 8], d_out=1, n_blocks=2, d_block=DIM, dropout=0.0,
             k=4, arch_type="tabm", start_scaling_init="random-signs"),
        lambda m, x, ids: m(x, ids).mean(1),
    ),
}  # fmt: skip

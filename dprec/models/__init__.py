"""Models; to add one, subclass `SequenceRecommender`, `Recommender` or `ClickModel` in a new file, and import it here.

A recipe names your own class by its module, `my_module.MyModel`: a subclass of these, or any torch module that has
`losses` and `scores`, or `logits` (`adapted`). Any other module trains from a script; for `dprec fit` it needs a `Task`
in `run/tasks`, which defines its evaluation.
"""

from dprec.models.base import Recommender, SequenceRecommender
from dprec.models.clicks import DLRM, PCTR, ClickModel, Logistic
from dprec.models.dpformer import DPFormer
from dprec.models.dual_encoder import DualEncoder
from dprec.models.learning.learner import Learner
from dprec.models.recurrent import GRU, LSTM
from dprec.models.spectral import Spectral, SpectralFormer
from dprec.models.text_classifier import TextClassifier
from dprec.models.text_items import TextItems
from dprec.models.transformer import Transformer

__all__ = [
    "DLRM",
    "GRU",
    "LSTM",
    "PCTR",
    "ClickModel",
    "DPFormer",
    "DualEncoder",
    "Learner",
    "Logistic",
    "Recommender",
    "SequenceRecommender",
    "Spectral",
    "SpectralFormer",
    "TextClassifier",
    "TextItems",
    "Transformer",
]

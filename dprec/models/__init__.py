"""Models; to add one, subclass `SequenceRecommender`, `Recommender` or `ClickModel` in a new file, and import it here.

A recipe names a class of your own by its module, `my_module.MyModel`: one of these, or any torch module that has
`losses` and `scores`, or `logits` (`adapted`). Any other module trains from a script; `dprec fit` needs a `Task` for it
in `run/tasks`, which says by what it is judged.
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

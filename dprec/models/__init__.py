"""Models; to add one, subclass `SequenceRecommender`, `Recommender` or `ClickModel` in a file of its own."""

from dprec.models.base import Recommender, SequenceRecommender
from dprec.models.clicks import ClickModel
from dprec.models.dlrm import DLRM
from dprec.models.learner import Learner
from dprec.models.logistic import Logistic
from dprec.models.pctr import PCTR
from dprec.models.transformer import Transformer

__all__ = ["DLRM", "PCTR", "ClickModel", "Learner", "Logistic", "Recommender", "SequenceRecommender", "Transformer"]

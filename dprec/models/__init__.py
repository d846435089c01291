"""Recommenders; to add one, subclass `Recommender` or `SequenceRecommender` in a file of its own."""

from dprec.models.base import Recommender, SequenceRecommender
from dprec.models.dpformer import DPFormer
from dprec.models.dual_encoder import DualEncoder
from dprec.models.recurrent import GRU, LSTM
from dprec.models.spectral import Spectral
from dprec.models.transformer import Transformer

__all__ = ["GRU", "LSTM", "DPFormer", "DualEncoder", "Recommender", "SequenceRecommender", "Spectral", "Transformer"]

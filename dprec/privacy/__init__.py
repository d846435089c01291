"""User-level differential privacy: clip every user's gradient, add noise, keep the books."""

from dprec.privacy.budget import PrivacyBudget
from dprec.privacy.engine import Privacy
from dprec.privacy.ledger import Event, Ledger

__all__ = ["Event", "Ledger", "Privacy", "PrivacyBudget"]

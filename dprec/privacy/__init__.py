"""User-level differential privacy: clip every user's gradient, add noise, keep the books."""

from dprec.accounting.budget import PrivacyBudget
from dprec.accounting.ledger import Event, Ledger
from dprec.privacy.callback import Privacy

__all__ = ["Event", "Ledger", "Privacy", "PrivacyBudget"]

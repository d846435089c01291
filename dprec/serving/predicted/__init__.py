"""Predicting from a trained run that ranks nothing: classes of texts, clicks."""

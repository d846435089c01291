"""Recommending from a trained run: raw ids in, raw ids out."""

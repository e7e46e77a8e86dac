"""Forecasts made of a signal's own history, and what they are worth."""

from lowtide.forecasting.auto import Auto

__all__ = ["Auto"]

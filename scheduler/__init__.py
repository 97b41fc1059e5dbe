"""Chooses hosts and claims them: host table, filters, weighers, drivers, claims, explanations. Launches nothing."""

"""Inventories, and the claims that servers hold on them. Only these modules write either."""

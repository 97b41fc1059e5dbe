"""Servers at the API level: mappings, lists, names, addresses, images and edits.

Each function of a transaction takes ``tx`` first. Claims, operations and the queue have folders of their own.
"""

"""Commands on servers and on decisions about them.

They speak HTTP to the API and open no database. Each file has commands that share options.
"""

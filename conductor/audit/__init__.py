"""Compares all that databases say of servers, claims and hosts, and puts right what does not agree."""

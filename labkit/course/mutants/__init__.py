"""Mutants of the right answers: small systematic changes, each of which check must reject.

places       where an answer can be changed
operators    the changes: guards, indices, barriers, identities, types, steps, launches, whole statements
trial        runs mutants through check, each exercise in a process of its own
ledger       data/mutants.toml: how many were tried, and which survived without being equivalent

    labkit exercises mutate row_range       one exercise; 09: a chapter; nothing: all
"""

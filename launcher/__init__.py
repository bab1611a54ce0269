"""lwccrun: starts the ranks of a job, watches them, and says which one failed and why.

Imports neither a framework nor the native core: it meets the ranks through LWCC_* variables and the rendezvous store.
"""

"""Numbers from q, k, v: the textbook core (numpy) and the fast cores (torch).

What lives here: mathematics. What does not: text, files, screens.
"""

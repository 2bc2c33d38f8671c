"""From numbers to something a person or a program reads.

A view (``views/``) turns a result into neutral shapes (``shapes``); a format (``formats/``) draws
shapes, or writes the result itself for machines. V views and F formats are V + F files.
"""

"""Damaged and hostile inputs by the thousand: ``make fuzz``, or ``python -m fuzz --help``.

A kind (``kinds``) makes inputs from a seed and a number, always the same bytes, and reads them the
way the program does. A worker process (``worker``) reads them one by one under limits; its parent
(``campaign``) notices when it dies or hangs, and says on which input. What was found is kept in
``regressions``, how much was tried in ``counts.json``.
"""

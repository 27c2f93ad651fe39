"""Run the cells of tour.ipynb in order and write their outputs into it: ``python -m models.tour``.

No Jupyter is needed. A cell's output is what it prints, and its last line if that is an expression, as Jupyter shows
it. Files that cells write go to a folder that is deleted.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import tempfile
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).with_name("tour.ipynb")


def executed(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with the outputs of a run in the present folder. What a cell raises comes out as itself."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells, count = [], 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            source = "".join(cell["source"])
            cell = {**cell, "execution_count": count, "outputs": _outputs(source, names, count)}
        cells.append(cell)
    return {**notebook, "cells": cells}


def _outputs(source: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    tree, printed = ast.parse(source), io.StringIO()
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"cell {count}", "exec"), names)
        value = None if last is None else eval(compile(ast.Expression(last.value), f"cell {count}", "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": _lines(printed.getvalue())})
    if value is not None:
        data = {"text/plain": _lines(repr(value))}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = _lines(value._repr_html_())
        outputs.append({"output_type": "execute_result", "execution_count": count, "data": data, "metadata": {}})
    return outputs


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def run() -> dict[str, Any]:
    """The committed notebook, executed in a folder of its own."""
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    here = os.getcwd()
    with tempfile.TemporaryDirectory(prefix="ogc-plan-") as folder:
        os.chdir(folder)
        try:
            return executed(notebook)
        finally:
            os.chdir(here)


if __name__ == "__main__":
    NOTEBOOK.write_text(json.dumps(run(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
